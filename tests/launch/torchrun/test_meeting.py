"""Waits of a rank that have an end, whatever rank 0 does."""

import pytest
import torch
from fake_clock import FakeClock
from torch.distributed import HashStore

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.fabric.signed_store import SignedStore
from istbench.launch.processes.failures import WorkerLost
from istbench.launch.processes.world import World
from istbench.launch.torchrun import meeting as meeting_module
from istbench.launch.torchrun.meeting import Announced, Card, Meeting


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    monkeypatch.setattr(meeting_module, "time", made)
    return made


@pytest.fixture
def store(monkeypatch):
    made = HashStore()
    monkeypatch.setattr(torch.distributed, "TCPStore", lambda *_, **__: made)
    return made


@pytest.fixture
def both(monkeypatch, store, clock):
    """The meetings of both ranks of a run that has started."""
    monkeypatch.setenv("ISTBENCH_SECRET", "a secret of this test")
    first, second = (
        Meeting(World(rank=rank, size=2, local_rank=rank, local_size=2, host_rank=0, master="first", port=1))
        for rank in range(2)
    )
    first.post_card(Card(rank=0, host="first"))
    second.post_card(Card(rank=1, host="second"))
    first.start(first.cards())
    assert second.await_start()
    return first, second


def announced(nodes):
    return Announced(request=RunRequest(workload="toy", method="ddp", nodes=nodes), like=0)


def test_a_rank_0_that_never_reports_the_end_of_the_run_is_named(both):
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"^rank 0 has not reported .* its istbench, on first, was stopped"):
            both[1].await_end()


@pytest.mark.parametrize("forged", [False, True])
def test_a_store_that_does_not_answer_is_a_loss_unless_secrets_may_differ(both, store, monkeypatch, forged):
    def broken(*_):
        raise RuntimeError("Broken pipe")

    if forged:
        store.set(f"{both[1].world.prefix}/run/stop", "forged")
        assert not both[1].is_to_stop()
    monkeypatch.setattr(SignedStore, "find", broken)
    with pytest.raises(RunFailed, match="does not answer \\(Broken pipe\\)") as failed:
        both[1].is_to_stop()
    assert isinstance(failed.value, WorkerLost) != forged


def test_the_status_of_rank_0_ends_the_wait(both):
    both[0].end(1)
    assert both[1].await_end() == 1


def test_a_rank_that_does_not_answer_an_announced_cell_is_given_up(both, clock, monkeypatch):
    first, second = both
    cell = first.announce(announced(2))
    cell.post_card(Card(rank=0, host="first"))
    second.post_ready()
    with pytest.raises(
        RunFailed, match="^second: rank 1 does not answer: its istbench was stopped or killed, or its"
    ):
        cell.cards()
    _, own = second.await_cell()
    own.answer()

    def sleep(seconds):
        clock.seconds += seconds
        if clock.seconds > prepared:
            own.post_card(Card(rank=1, host="second"))

    prepared = clock.seconds + 600
    monkeypatch.setattr(clock, "sleep", sleep)
    assert [card.host for card in cell.cards()] == ["first", "second"]


def test_a_rank_trains_the_announced_cells_that_have_as_many_nodes(both):
    first, second = both
    for nodes in (1, 2, 1):
        first.announce(announced(nodes)).end()
    first.end(0)
    found, cell = second.await_cell()
    assert (found.request.nodes, cell.await_start()) == (2, None)
    assert second.await_cell() is None
    with pytest.raises(UserError, match="3 nodes need as many processes"):
        first.announce(announced(3))
