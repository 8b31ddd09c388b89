"""A host that sends garbage is lost at once, with one line; no processes."""

import io
import os
import queue
import subprocess

import pytest

from istbench.launch.hosts import connection as ssh_connection
from istbench.launch.hosts.agent_program import MARK
from istbench.launch.hosts.connection import Connection, Event, Frame, Lost
from istbench.launch.hosts.names import Host

PYTHON = b'{"python": [3, 11]}'


class Process:
    """An ssh that prints whatever is written to `printed`, and ends when it is told to."""

    def __init__(self, *_, **__):
        read, self._write = os.pipe()
        self.stdin, self.stdout, self.stderr = io.BytesIO(), os.fdopen(read, "rb"), io.BytesIO()
        self.ended = False

    def print(self, *lines):
        for line in lines:
            os.write(self._write, MARK.encode() + line + b"\n")

    def hang_up(self):
        os.close(self._write)

    def terminate(self):
        self.ended = True

    def wait(self, timeout=None):
        return 255


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Process)
    return Connection(Host("b", local=True), ["python3"], queue.SimpleQueue())


GARBAGE = {
    b"7": "it must be a table, not 7",
    b"null": "it must be a table, not None",
    b'["said"]': "it must be a table, not ['said']",
    b"{": "not JSON (",
    b"[" * 100_000: "it must be a table",
    b'{"id": 1, "answer": ' + b"[" * 100_000: "nested too deep",
    b'{"id": 1, "answer": NaN}': "not JSON (",
    b'{"id": 1, "answer": ' + b"9" * 5000 + b"}": "answer is out of range",
    b"{}": "it must be one message",
    b'{"id": 1}': "it must be one message",
    b'{"id": 1, "answer": 1, "error": "no"}': "it must be one message",
    b'{"answer": 1}': "it must be one message",
    b'{"id": 1, "said": "a", "answer": 1}': "it must be one message",
    b'{"id": 9, "answer": 1}': "nobody requested this result",
    b'{"id": "x", "answer": 1}': "id must be a whole number, not 'x'",
    b'{"id": [], "answer": 1}': "id must be a whole number, not []",
    b'{"id": 1, "bytes": -1}': "bytes must be a whole number of at least 0, not -1",
    b'{"id": 1, "bytes": "5"}': "bytes must be a whole number, not '5'",
    b'{"id": 1, "bytes": 1000000000}': "bytes must be a whole number of at most 16777216, not 1000000000",
    b'{"id": 1, "error": {}}': "error must be text, not {}",
    PYTHON: "nobody requested this result",
    b'{"python": "3"}': "python must be a list, not '3'",
    b'{"said": 5}': "said must be text, not 5",
    b'{"cell": ["a"]}': "cell must be text, not ['a']",
    b'{"ended": "well"}': "ended must be a whole number, not 'well'",
    b'{"ended": 1, "failure": {"message": "no"}}': "failure.status is missing",
    b'{"ended": 1, "tail": "abc"}': "tail must be a list, not 'abc'",
    b'{"lost": "me"}': "lost: unknown name",
}


@pytest.mark.parametrize(("frame", "reason"), GARBAGE.items(), ids=[frame[:40] for frame in GARBAGE])
def test_another_message_ends_the_connection_and_fails_its_requests(host, frame, reason):
    asked = host.ask("clock")
    host._process.print(PYTHON, frame)
    event = host._events.get(timeout=10)
    assert event.host is host
    assert isinstance(event.frame, Lost)
    for lost in (event.frame, asked.exception(10), host.ask("clock").exception(10)):
        assert str(lost).startswith(f"it sends a wrong message: {reason}")
        assert str(lost).endswith("; install the same istbench on every host")
        assert len(str(lost).splitlines()) == 1
    assert host._process.ended


def test_a_line_without_an_end_ends_the_connection(host, monkeypatch):
    monkeypatch.setattr(ssh_connection, "_LONGEST_LINE", 100)
    host._process.print(b'{"said": "' + b"a" * 1000)
    assert "not JSON" in str(host._events.get(timeout=10).frame)


def test_a_message_that_breaks_off_is_a_lost_connection(host):
    asked = host.ask("clock")
    host._process.print(PYTHON)
    os.write(host._process._write, MARK.encode() + b'{"id": 1, "answ')
    host._process.hang_up()
    with pytest.raises(Lost, match=r"^the connection to it is lost \(ssh ended with status 255"):
        host.answer(asked)


def test_messages_and_results_come_as_they_were_sent(host):
    asked = [host.ask("read") for _ in range(3)]
    host._process.print(PYTHON, b'{"id": 2, "answer": null}', b'{"id": 0, "answer": 1.5}', b'{"said": "a"}')
    host._process.print(b'{"id": 1, "bytes": 3}')
    os.write(host._process._write, b"\n\xff{")
    host._process.print(b'{"id": 3, "answer": [{"a": 1}]}')
    assert [host.answer(future) for future in asked] == [b"\n\xff{", None, [{"a": 1}]]
    assert host._events.get(timeout=10) == Event(host, Frame(said="a"))
    host.greet()
