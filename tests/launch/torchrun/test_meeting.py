"""Waits of a rank that have an end, whatever rank 0 does."""

from dataclasses import replace
from threading import Timer

import pytest
from torch.distributed import HashStore

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.processes.failures import WorkerLost
from istbench.launch.processes.world import World
from istbench.launch.torchrun import meeting as meeting_module
from istbench.launch.torchrun.meeting import Announced, Card, Meeting


@pytest.fixture
def meeting(monkeypatch, tmp_path):
    """That of rank 1, in training, in a store of its own."""
    monkeypatch.setenv("ISTBENCH_SECRET", "a secret of this test")
    monkeypatch.setattr(meeting_module, "_STATUS_S", 0.3)
    monkeypatch.setattr(Meeting, "_store", HashStore())
    world = World(rank=1, size=2, local_rank=1, local_size=2, host_rank=0, master="first", port=1)
    found = Meeting(world)
    found._nonces, found.hosts = ["one", "two"], ["first", "second"]
    found._begin()
    return found


def test_a_rank_0_that_never_reports_the_end_of_the_run_is_named(meeting):
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"^rank 0 has not reported .* its istbench, on first, was stopped"):
            meeting.await_end()


@pytest.mark.parametrize(("forged", "lost"), [({}, True), ({"card/0": 1.0}, False)])
def test_a_store_that_does_not_answer_is_a_loss_unless_secrets_may_differ(meeting, monkeypatch, forged, lost):
    def broken(*_):
        raise RuntimeError("Broken pipe")

    monkeypatch.setattr(meeting._signed, "find", broken)
    monkeypatch.setattr(meeting, "_forged", forged)
    with pytest.raises(RunFailed, match="does not answer \\(Broken pipe\\)") as failed:
        meeting.is_to_stop()
    assert isinstance(failed.value, WorkerLost) == lost


def test_the_status_of_rank_0_ends_the_wait(meeting):
    meeting.end(1)
    assert meeting.await_end() == 1


def test_a_rank_that_does_not_answer_an_announced_cell_is_given_up(meeting, monkeypatch):
    monkeypatch.setattr(meeting_module, "_ANSWERS_S", 0.3)
    cell = meeting.announce(Announced(request=RunRequest(workload="toy", method="ddp", nodes=2), like=0))
    cell.post_card(Card(rank=0, host="first"))
    meeting.post_ready()
    with pytest.raises(
        RunFailed, match="^second: rank 1 does not answer: its istbench was stopped or killed, or its"
    ):
        cell.cards()
    cell.answer()  # as rank 1
    timer = Timer(1.0, cell.post_card, [Card(rank=1, host="second")])
    timer.start()
    assert [card.host for card in cell.cards()] == ["first", "second"]
    timer.join()


def test_a_rank_trains_the_announced_cells_that_have_as_many_nodes(meeting):
    first = Meeting(replace(meeting.world, rank=0, local_rank=0))
    first._nonces = meeting._nonces
    first._begin()
    for nodes in (1, 2, 1):
        first.announce(Announced(request=RunRequest(workload="toy", method="ddp", nodes=nodes), like=0)).end()
    first.end(0)
    found, cell = meeting.await_cell()
    assert (found.request.nodes, cell.await_start()) == (2, None)
    assert meeting.await_cell() is None
    with pytest.raises(UserError, match="3 nodes need as many processes"):
        first.announce(Announced(request=RunRequest(workload="toy", method="ddp", nodes=3), like=0))
