"""Programs that a host runs to measure something."""

import io
import time

import pytest

from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.remote_programs import answers_of

pytestmark = pytest.mark.processes

PROGRAM = """
import os, sys, time
print("a library says this first")
own = os.environ["OWN"]
if own == "fail":
    sys.exit("no GPU here")
if own == "hang":
    time.sleep(600)
if sys.argv[1] == "talk":
    print("x" * 2**20, flush=True)
    print("x" * 2**20, file=sys.stderr, flush=True)
print(own)
"""


@pytest.fixture
def agent(tmp_path, monkeypatch):
    (tmp_path / "measures.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Agent(io.StringIO(), {})


@pytest.mark.parametrize("word", ["say", "talk"])  # much more than a pipe holds
def test_each_program_answers_in_its_last_line(agent, word):
    environments = [{"OWN": '{"one": 1}'}, {"OWN": "[2]"}]
    assert answers_of(agent, "measures", [word], environments, 60.0) == [{"one": 1}, [2]]
    assert_ended(agent, 2)


def test_the_last_line_of_the_first_program_that_fails_is_the_reason(agent):
    began = time.monotonic()
    with pytest.raises(OSError, match="^no GPU here$"):
        answers_of(agent, "measures", ["say"], [{"OWN": "hang"}, {"OWN": "fail"}], 500.0)
    assert time.monotonic() - began < 60.0
    assert_ended(agent, 2)


def test_programs_end_after_their_time(agent):
    with pytest.raises(OSError, match=r"^no result within 0\.3 s$"):
        answers_of(agent, "measures", ["say"], [{"OWN": "hang"}, {"OWN": "[2]"}], 0.3)
    assert_ended(agent, 2)


def assert_ended(agent, count):
    """Whether all `count` processes have ended, and the end of the connection has nothing to kill."""
    assert [kill.__self__.returncode is not None for kill in agent.undo] == [True] * count
    agent.end()
