"""Whether the next evaluation comes far too late. Functions named `node_*` run on every node."""

import threading
import time

import msgspec
import pytest
from late_messages import make_late
from ranks import Kept

from istbench.base.activity import current
from istbench.base.options.run import RunRequest
from istbench.fabric.heartbeats import doing, waits
from istbench.fabric.recorder import Recorder
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node import lateness
from istbench.node.destinations import Destinations
from istbench.node.lateness import RoundSeconds
from istbench.node.worker import RankTraining
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload


def paced(pace, now, steps, step_s, first=0):
    """Look after each of `steps` local steps of `step_s` seconds; the last look and its time."""
    found = None
    for step in range(first + 1, first + steps + 1):
        now += step_s
        found = pace.look(now, step)
    return found, now


def test_the_time_to_an_evaluation_follows_the_last_rounds():
    pace = RoundSeconds(1)
    pace.begin(0.0, 0, 100)
    found, now = paced(pace, 0.0, 50, 1.0)
    assert found == (pytest.approx(100.0), pytest.approx(100.0))
    found, now = paced(pace, now, 5, 30.0, first=50)
    assert found == (pytest.approx(200.0 + 45 * 30.0), pytest.approx(100.0))


def test_one_long_round_says_nothing_about_the_others():
    pace = RoundSeconds(1)
    pace.begin(0.0, 0, 100)
    _, now = paced(pace, 0.0, 50, 1.0)
    assert pace.look(now + 60.0, 50) == (pytest.approx(160.0), pytest.approx(100.0))
    found, _ = paced(pace, now + 60.0, 1, 1.0, first=50)
    assert found == (pytest.approx(160.0), pytest.approx(100.0))


def test_a_round_that_does_not_end_counts_as_long_as_it_has_lasted():
    pace = RoundSeconds(10)
    pace.begin(0.0, 0, 20)
    paced(pace, 0.0, 10, 1.0)
    assert pace.look(500.0, 19) == (pytest.approx(510.0), pytest.approx(20.0))


def test_before_the_first_round_nothing_is_known():
    pace = RoundSeconds(10)
    pace.begin(0.0, 0, 100)
    assert paced(pace, 0.0, 9, 10.0)[0] is None


def test_an_exchange_at_the_end_of_a_round_belongs_to_it():
    pace, now = RoundSeconds(4), 0.0
    pace.begin(now, 0, 400)
    for first in range(0, 80, 4):
        for step in (1, 2, 3):
            now += 0.1
            pace.look(now, first + step)
        for _ in range(30):
            now += 1.0
            found = pace.look(now, first + 3)
            assert found is None or found[0] < 2 * found[1]
        pace.look(now, first + 4)


def test_a_segment_of_slow_rounds_is_compared_with_those_before():
    pace = RoundSeconds(1)
    pace.begin(0.0, 0, 10)
    _, now = paced(pace, 0.0, 10, 1.0)
    pace.finish(now, 10)
    pace.begin(1000.0, 10, 20)
    found, _ = paced(pace, 1000.0, 5, 50.0, first=10)
    assert found == (pytest.approx(500.0), pytest.approx(10.0))


STEPS, SLOW_FROM, LOOKS = 26, 20, 5


class Script:
    """The clock of rank 0: a hundredth of a second a local step, until a step stands still for several looks."""

    def __init__(self, fabric, standing):
        self._fabric, self._standing = fabric, standing
        self._looked = threading.Condition()
        self.looks = self.steps = self._stood = 0

    def perf_counter(self):
        """In place of that of `time`; each call of the thread that looks is a look."""
        if threading.current_thread().name == "lateness":
            with self._looked:
                self._stood = self._stood + 1 if self._standing(self._fabric) else 0
                self.looks += 1
                self._looked.notify()
        return 0.01 * self.steps + (1000.0 if self._stood >= LOOKS else 0.0)

    def await_look(self):
        """Wait for a look at the steps so far, of which the usual seconds of a round come."""
        with self._looked:
            before = self.looks
            assert self._looked.wait_for(lambda: self.looks > before + 1, 60)


def stands_in_a_step(fabric):
    """Whether rank 0 waits, and the last heartbeat of rank 1 is one of a training step."""
    sign = fabric.texts.heartbeats.sign_of(1)
    return current.look().waits and not waits(sign) and f"computing training step {SLOW_FROM - 1}" in doing(sign)


def stands_in_messages(fabric):
    """Whether both ranks wait."""
    return current.look().waits and waits(fabric.texts.heartbeats.sign_of(1))


STANDING = {"sleep": stands_in_a_step, "late": stands_in_messages, "": lambda _: False}


class Slow(Destinations):
    """Destinations whose rank 1 stands still in a step, or whose messages are late, until rank 0 has a note."""

    def __init__(self, sinks, fabric, how, noted, script):
        super().__init__(sinks)
        self._fabric, self._how, self._noted, self._script = fabric, how, noted, script
        current.finish = self.after_step

    def record(self, event):
        super().record(event)
        if getattr(event, "urgent", False):
            self._noted.touch()

    def after_step(self, done):
        if self._script is not None:
            self._script.steps = done
            if 0 < done < SLOW_FROM:
                self._script.await_look()
        if done == SLOW_FROM and self._how == "late":
            make_late(self._fabric, 0.0, self._await_note)
        elif done == SLOW_FROM and self._how == "sleep" and self._fabric.rank == 1:
            self._await_note()

    def _await_note(self):
        until = time.monotonic() + 60.0
        while not self._noted.exists() and time.monotonic() < until:
            time.sleep(0.01)


def node_notes(fabric, config, folder, how):
    """The urgent notes of a run whose local step 21 is slow."""
    lateness._LOOKS_S, lateness._LEAST_S = 0.01, 0.05
    kept = Kept()
    fabric.recorder = Recorder(fabric.device)
    fabric.texts.heartbeats.every_s = 0.05
    _ = fabric.transport  # ranks that connect wait for each other, too
    script = None
    if fabric.rank == 0:
        script = lateness.time = Script(fabric, STANDING[how])
    sinks = Slow([kept] if fabric.rank == 0 else [], fabric, how, folder / "noted", script)
    RankTraining(RunDirectory(folder), config, open_workload("toy", config.workload_options), fabric, sinks).train()
    return [event.message for event in kept.events if getattr(event, "urgent", False)]


@pytest.mark.processes
@pytest.mark.parametrize("how", ["late", "sleep", ""])
def test_a_slow_run_says_so_once_with_its_operation(tmp_path, how):
    request = RunRequest(
        workload="toy",
        method="local_sgd",
        nodes=2,
        steps=STEPS,
        eval_every=STEPS,
        method_options={"local_steps": "1"},
    )
    config = prepare_cell(request, lambda *_: None).config
    notes = on_nodes(node_notes, 2, msgspec.structs.replace(config), tmp_path, how)[0]
    assert len(notes) == (1 if how else 0)
    for note in notes:
        assert note.startswith("slow: the evaluation after step 26 seems to come ")
        assert "averag" in note
        assert ("rank 1 is computing training step" in note) == (how == "sleep")
