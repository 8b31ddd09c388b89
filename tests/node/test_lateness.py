"""Whether the next evaluation comes far too late. Functions named `node_*` run on every node."""

import msgspec
import pytest
from test_stalls import Disturbing, Kept

from istbench.base.options.run import RunRequest
from istbench.fabric.recorder import Recorder
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node import lateness
from istbench.node.lateness import RoundSeconds
from istbench.node.worker import train_rank
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


STEPS = 26


def node_notes(fabric, config, folder, how):
    """The urgent notes of a run whose local steps from 20 to its evaluation are slow."""
    lateness._LOOKS_S, lateness._LEAST_S = 0.05, 0.3
    kept = Kept()
    fabric.recorder = Recorder(fabric.device)

    class Slow(Disturbing):
        def step(self, done):
            self._step = done if 20 <= done < STEPS else -1
            super().step(done)

    sinks = Slow([kept] if fabric.rank == 0 else [], fabric, 0, how)
    train_rank(RunDirectory(folder), config, open_workload("toy", config.workload_options), fabric, sinks)
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
    named = False
    # A note shows one moment, in which a rank that sleeps in its steps may exchange, and a late one may compute
    # on a busy machine: then another run shows it.
    for number in range(3):
        # With so short a time-out, heartbeats come in less than the seconds of the run.
        short = {"timeout_s": 3.0} if how == "sleep" else {}
        notes = on_nodes(node_notes, 2, msgspec.structs.replace(config), tmp_path / str(number), how, **short)[0]
        assert len(notes) == (1 if how else 0)
        for note in notes:
            assert note.startswith("slow: the evaluation after step 26 seems to come ")
            assert "averag" in note
        named = any("rank 1 is computing training step" in note for note in notes)
        if named == (how == "sleep"):
            break
    assert named == (how == "sleep")
