"""Who is named when hosts end before they train; no processes."""

import queue
from pathlib import Path

import msgspec
import pytest
from published_steps import publish_step, write_step

from istbench.base.errors import RunFailed
from istbench.base.options.run import RunRequest
from istbench.launch.hosts import run as ssh_run
from istbench.launch.hosts.connection import Event, Frame, Lost
from istbench.launch.hosts.group import HostClock, HostGroup
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.run import HostsRun, Session
from istbench.launch.hosts.run_folder import reason as told_reason
from istbench.results.events import Loss, Return
from istbench.results.store import RunDirectory

REQUEST = RunRequest(workload="toy", method="ist")
INTERRUPTED = {"message": "interrupted", "status": 130}


class Pretended:
    """A host that says `words` when it is told to end; nothing else may be asked of it."""

    def __init__(self, name, events, *words):
        self.name, self._events, self._words = name, events, words

    def ask(self, do, grace_s):
        assert (do, grace_s) == ("end", None)
        for frame in self._words:
            self._events.put(Event(self, msgspec.convert(frame, Frame)))


def test_a_cell_that_is_named_while_all_are_ended_is_not_trained(monkeypatch):
    monkeypatch.setattr(ssh_run, "_FAREWELL_S", -1.0)
    events = queue.SimpleQueue()
    ended = {"ended": 1, "tail": [], "failure": INTERRUPTED}
    first, second = Pretended("a", events, {"cell": "cell"}, ended), Pretended("b", events)
    events.put(Event(second, Frame(ended=1, tail=("out of luck",))))
    run = HostsRun(request=REQUEST, out=Path("out"))
    ended = "^b: torchrun ended with status 1 while the hosts started and prepared data; run the same command again"
    with pytest.raises(RunFailed, match=f"{ended}.*\n  out of luck$"):
        Session([first, second], events, run, "there", False, print, print)._await_cell()


@pytest.fixture
def session(tmp_path):
    """A session that trains on hosts a and b, whose run directory here has a checkpoint of step 30, or none."""

    def made(checkpoint=True, shared=False, again=False):
        run = HostsRun(request=REQUEST, out=tmp_path, again=again)
        hosts = [Pretended(name, None) for name in "ab"]
        found = Session(hosts, queue.SimpleQueue(), run, "there", shared, lambda _: None, lambda _: None)
        found._here, found._began = RunDirectory(tmp_path / "runs" / "cell"), True
        found._here.path.mkdir(parents=True)
        found._here.run_json.write_text("{}")
        if checkpoint:
            write_step(found._here.checkpoint, 30, {"rank-0.json": b"{}"})
            publish_step(found._here.checkpoint, 30)
        return found

    return made


def lose(session, number):
    session._hear(Event(session._hosts[0], Frame(said="toy ist n=2 seed 1: step 40/90 accuracy 0.5")))
    session._hear(Event(session._hosts[number], Lost("the connection to it is lost (ssh ended with status 255)")))
    return str(session._cause())


def test_a_lost_host_is_named_with_what_went_on_and_the_checkpoint_that_is_gone_on_from(session):
    assert lose(session(), 1) == (
        "b: the connection to it is lost (ssh ended with status 255) while it trained, after step 40; the same "
        "command goes on from step 30, the last checkpoint copied here, on these hosts or others"
    )


def test_without_a_checkpoint_nobody_is_told_that_the_run_goes_on(session):
    said = lose(session(checkpoint=False), 1)
    assert said.endswith(
        "; no checkpoint has been copied here yet: the same command starts anew, on these hosts or others"
    )


def test_a_first_host_that_is_lost_may_have_a_checkpoint_that_did_not_come_home(session):
    said = lose(session(checkpoint=False), 0)
    assert said.endswith(
        "; no checkpoint has been copied here yet: the same command goes on from the last one that a still has, "
        "and starts anew on other hosts"
    )


def test_what_a_shared_directory_has_was_written_and_again_is_to_be_left_out(session):
    said = lose(session(shared=True, again=True), 0)
    assert "; the same command without --again goes on from step 30, the last checkpoint written, on" in said


class Started(Pretended):
    """A host on which nothing goes wrong, and which keeps the environment of its processes."""

    host = Host("a")

    def ask(self, do, **arguments):
        self.environment = arguments["environment"]

    def answer(self, asked, timeout_s):
        return None


GONE = Loss(cause="b: gone", noticed=1e9, noticing_s=1.0, redone_steps=2, redone_s=3.0)


@pytest.mark.parametrize("reason", [GONE, Return(cause="b can be reached again", noticed=1e9)])
def test_each_host_is_told_of_a_loss_or_a_return_by_its_own_clock(monkeypatch, reason):
    hosts, clocks = [Started(name, None) for name in "ab"], {"a": -5.0, "b": 7.0}
    group = HostGroup(
        facts={},
        clocks={name: HostClock(ahead_s=ahead, within_s=0.1) for name, ahead in clocks.items()},
        addresses={"a": "10.0.0.1"},
        port=77,
    )
    run = HostsRun(request=REQUEST, out=Path("out"))
    Session(hosts, queue.SimpleQueue(), run, "there", False, print, print)._start(group, {}, reason)
    for host in hosts:
        for name, value in host.environment.items():
            monkeypatch.setenv(name, value)
        assert told_reason() == msgspec.structs.replace(reason, noticed=1e9 + clocks[host.name])
