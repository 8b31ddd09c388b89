"""Who listens to find out whether hosts reach one another: for whom, and until when."""

import io
import socket

import pytest

from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.remote_links import bandwidth, latency, listen, stop_listening, try_connections

TOKEN, ANOTHER = "a" * 64, "b" * 64


@pytest.fixture
def agent():
    found = Agent(io.StringIO(), {})
    yield found
    stop_listening(found, {})


@pytest.fixture
def place(agent):
    return ["127.0.0.1", listen(agent, {"address": "127.0.0.1", "token": TOKEN}), TOKEN]


def test_who_has_the_token_is_answered_and_a_stranger_turned_away(agent, place):
    assert try_connections(agent, {"places": [place, [*place[:2], ANOTHER]]}) == [
        ["127.0.0.1", ""],
        ["", "it hung up"],
    ]


def test_one_that_says_nothing_holds_up_nobody(agent, place):
    with socket.create_connection(tuple(place[:2])):
        assert try_connections(agent, {"places": [place]}) == [["127.0.0.1", ""]]


def test_nothing_listens_afterwards(agent, place):
    stop_listening(agent, {})
    assert try_connections(agent, {"places": [place]}) == [["", "Connection refused"]]


def test_a_link_is_measured_with_the_token_alone(agent, place):
    asked = {"place": place, "seconds": 0.2}
    assert bandwidth(agent, asked) > 1e6
    assert 0 < latency(agent, asked) < 1
    for measure in (bandwidth, latency):
        with pytest.raises(OSError, match="hung up"):
            measure(agent, {**asked, "place": [*place[:2], ANOTHER]})
