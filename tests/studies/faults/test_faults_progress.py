"""When faults hit: at train seconds of all steps, also of those that were lost, and while all nodes train."""

import os
import signal
from types import SimpleNamespace

import pytest
from fake_runs import resume

from istbench.results.events import Resize
from istbench.results.store import RunDirectory
from istbench.studies.faults import injector
from istbench.studies.faults.injector import FaultClock, Injector, damage_newest, seconds_at
from istbench.studies.faults.schedule import FaultType, PlannedFault

PACE = SimpleNamespace(evaluations=[SimpleNamespace(step=step) for step in (0, 10, 20)], seconds=(0.0, 5.0, 15.0))


def test_progress_follows_the_pace_of_the_run_without_faults():
    progress = FaultClock(PACE)
    assert [progress.look(step) for step in (0, 1, 10, 15, 15)] == pytest.approx([0, 0.5, 5.0, 10.0, 10.0])


def test_steps_beyond_the_end_take_as_long_as_those_before():
    assert [seconds_at(step, PACE) for step in (20, 40)] == [15.0, 30.0]


def test_steps_that_are_done_again_count_again():
    progress = FaultClock(PACE)
    progress.look(1)
    progress.look(16)
    assert progress.look(0) == pytest.approx(11.0), "nothing trains during a restart"
    assert progress.look(11) == pytest.approx(12.0), "the first step after the checkpoint of step 10"
    assert progress.look(16) == pytest.approx(17.0)


def test_a_smaller_group_is_hit_too_once_all_of_its_nodes_are_there(tmp_path, monkeypatch):
    run, there = RunDirectory(tmp_path), dict[int, int]()
    monkeypatch.setattr(injector, "workers_in", lambda _: there)
    killed = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    faults = [PlannedFault(type=FaultType(kind="kill"), at_s=1.0, place=0.9) for _ in range(2)]
    made = Injector(faults, PACE, 3, run, tmp_path, None)
    there |= {0: 100, 1: 101}
    made.hit(4)
    assert not made.hits
    run.append(resume(4, resize=Resize(before=3, after=2, cause="worker 2 was killed", noticed=1.0)))
    made.hit(5)
    run.append(resume(5, resize=Resize(before=2, after=3, cause="lost nodes are back", noticed=2.0)))
    made.hit(6)
    assert [(hit.rank, hit.step) for hit in made.hits] == [(1, 5)]
    assert killed == [(101, signal.SIGKILL)]


def test_damage_flips_a_bit_of_the_newest_checkpoint_if_an_older_one_is_left(tmp_path):
    for step in ("90", "100"):
        damage_newest(tmp_path, 0.9)
        (tmp_path / step).mkdir()
        for name in ("manifest.json", "rank-0.json", "rank-1.json"):
            (tmp_path / step / name).write_bytes(b"content")
    assert not [path for path in tmp_path.glob("*/*") if path.read_bytes() != b"content"]
    damage_newest(tmp_path, 0.9)
    changed = [path for path in tmp_path.glob("*/*") if path.read_bytes() != b"content"]
    assert changed == [tmp_path / "100" / "rank-1.json"]
    damage_newest(tmp_path / "nowhere", 0.5)
