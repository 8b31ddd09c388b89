"""Who is named when hosts end before they train; no processes."""

import queue
from pathlib import Path

import pytest
from ssh_hosts import GOOD

from istbench.errors import RunFailed
from istbench.launch.ssh import run as ssh_run
from istbench.launch.ssh.connection import Event
from istbench.launch.ssh.group import Group
from istbench.launch.ssh.run import HostsRun, _Session

INTERRUPTED = {"message": "interrupted", "status": 130}


class Pretended:
    """A host that says `words` when it is told to end; nothing else may be asked of it."""

    def __init__(self, name, events, *words):
        self.name, self._events, self._words = name, events, words

    def ask(self, do):
        assert do == "end"
        for frame in self._words:
            self._events.put(Event(self, frame))


def test_a_cell_that_is_named_while_all_are_ended_is_not_trained(monkeypatch):
    monkeypatch.setattr(ssh_run, "_FAREWELL_S", -1.0)
    events = queue.SimpleQueue()
    ended = {"ended": 1, "tail": [], "failure": INTERRUPTED}
    first, second = Pretended("a", events, {"cell": "cell"}, ended), Pretended("b", events)
    events.put(Event(second, {"ended": 1, "tail": ["out of luck"], "failure": None}))
    group = Group(facts={"a": GOOD, "b": GOOD}, clocks={}, addresses={}, port=1)
    asked = HostsRun(words=("run",), paths=(), out=Path("out"), again=False)
    with pytest.raises(RunFailed, match="^b: torchrun ended with status 1; .*\n  out of luck$"):
        _Session([first, second], events, group, asked, print)._await_cell()
