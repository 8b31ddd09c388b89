"""Waits of a rank that have an end, whatever rank 0 does."""

import pytest
from torch.distributed import HashStore

from istbench.base.errors import RunFailed
from istbench.launch.torchrun import meeting as meeting_module
from istbench.launch.torchrun.meeting import Meeting
from istbench.launch.torchrun.world import World


@pytest.fixture
def meeting(monkeypatch, tmp_path):
    """That of rank 1, in training, in a store of its own."""
    monkeypatch.setenv("ISTBENCH_SECRET", "a secret of this test")
    monkeypatch.setattr(meeting_module, "_STATUS_S", 0.3)
    monkeypatch.setattr(Meeting, "_store", HashStore())
    world = World(rank=1, size=2, local_rank=1, local_size=2, host_rank=0, hosts=1, master="first", port=1)
    found = Meeting(world)
    found._nonces = ["one", "two"]
    found._begin()
    return found


def test_a_rank_0_that_never_reports_the_end_of_the_run_is_named(meeting):
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"^rank 0 has not reported .* its istbench, on first, was stopped"):
            meeting.await_end()


def test_the_status_of_rank_0_ends_the_wait(meeting):
    meeting.end(1)
    assert meeting.await_end() == 1
