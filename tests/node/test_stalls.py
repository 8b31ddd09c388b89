"""Steps that something outside training held up. Functions named `node_*` run on every node."""

import time
from functools import partial
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from fake_runs import resume, start
from late_messages import make_late
from ranks import Kept, StopsAt

from istbench.base.activity import current
from istbench.base.options.run import RunRequest
from istbench.fabric.recorder import Recorder
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node import stalls
from istbench.node.destinations import Destinations
from istbench.node.stalls import Stalls, UsualSeconds
from istbench.node.worker import RankTraining
from istbench.results.events import Evaluation, Stall
from istbench.results.load import stalls_of
from istbench.results.store import RunDirectory
from istbench.studies.conformance.training import open_workload

STEPS, EVERY, HELD_UP_S, LATE_S = 12, 6, 2.0, 1.2
INSIDE, EXCHANGE = 1, 3  # kinds of steps


def segment(steps, first=0, known=None, ending=0.001):
    """The stalls of a segment of `steps`, each of (kind, seconds) or (kind, seconds, CPU seconds).

    ending: seconds of the work after the last step.
    """
    usual = UsualSeconds() if known is None else known
    kinds, seconds, computed = zip(*((*step, 0.0)[:3] for step in [*steps, (0, ending)]), strict=True)
    longs = usual.add(first, np.array(seconds), np.array(kinds), np.array(computed))
    return [(found.step, pytest.approx(found.lost_s)) for found in usual.judged(longs)]


def test_a_step_of_over_twenty_times_the_median_of_its_kind_is_a_stall():
    fast = [(INSIDE, 0.1)] * 9
    assert segment([*fast, (INSIDE, 3.1), *fast]) == [(10, 3.0)]
    assert segment([*fast, (INSIDE, 1.9), *fast]) == []
    assert segment([(INSIDE, 3.1), *fast]) == [(1, 3.0)]


def test_short_delays_are_none_however_fast_the_steps_are():
    fast = [(INSIDE, 0.001)] * 9
    assert segment([*fast, (INSIDE, 0.9), *fast]) == []
    assert segment([*fast, (INSIDE, 1.1), *fast]) == [(10, 1.099)]


def test_steps_that_exchange_are_compared_with_one_another():
    rounds = [*[(INSIDE, 0.01)] * 9, (EXCHANGE, 4.0)] * 5
    assert segment(rounds) == []
    assert segment([*rounds, (EXCHANGE, 90.0)]) == [(51, 86.0)]


def test_a_step_that_computes_is_none():
    fast = [(INSIDE, 0.1, 0.1)] * 9
    assert segment([*fast, (INSIDE, 5.0, 4.0), *fast]) == []
    assert segment([*fast, (INSIDE, 5.0, 1.0), *fast]) == [(10, 4.9)]
    threads = [(INSIDE, 0.1, 3.0)] * 9
    assert segment([*threads, (INSIDE, 5.0, 3.0), *threads]) == [(10, 4.9)]


def test_the_work_after_the_last_step_has_the_number_of_that_step():
    usual = UsualSeconds()
    for first in (0, 2, 4):
        assert segment([(INSIDE, 0.1)] * 2, first, usual, ending=0.1) == []
    assert segment([(INSIDE, 0.1)] * 2, 6, usual, ending=7.1) == [(8, 7.0)]


def test_a_kind_that_is_not_known_yet_is_judged_later():
    usual = UsualSeconds()
    assert segment([(EXCHANGE, 30.0), (EXCHANGE, 0.2)], 0, usual) == []
    assert segment([(EXCHANGE, 0.1), (EXCHANGE, 0.2)], 2, usual) == [(1, 29.8)]
    assert segment([(EXCHANGE, 0.1)], 4, usual) == []


def test_at_the_end_of_a_run_two_steps_are_enough_and_one_is_not():
    alone, pair = UsualSeconds(), UsualSeconds()
    for known, steps in ((alone, [(EXCHANGE, 30.0)]), (pair, [(EXCHANGE, 0.1), (EXCHANGE, 30.0)])):
        assert segment(steps, 0, known) == []
    assert alone.judged((), final=True) == []
    (found,) = pair.judged((), final=True)
    assert (found.step, found.lost_s) == (2, pytest.approx(29.9))


def test_a_link_that_stays_slow_is_no_stall_for_long():
    usual = UsualSeconds()
    segment([(INSIDE, 0.1)] * 20, 0, usual)
    assert len(segment([(INSIDE, 5.0)] * 10, 20, usual)) == 10
    for first in range(30, 400, 100):
        segment([(INSIDE, 5.0)] * 100, first, usual)
    assert segment([(INSIDE, 5.0)] * 10, 430, usual) == []


def test_thousands_of_stalls_make_few_events():
    kept, usual = Kept(), UsualSeconds()
    watched = Stalls(None, SimpleNamespace(device=torch.device("cpu")), Destinations([kept]))
    steps = [(INSIDE, 2.1 if step % 4 == 0 else 0.1) for step in range(8000)]
    longs = usual.add(0, np.array([seconds for _, seconds in steps]), np.full(8000, INSIDE), np.zeros(8000))
    watched._record(usual.judged(longs))
    assert len(kept.events) == 9
    assert sum(event.count for event in kept.events) == 2000
    assert sum(event.seconds for event in kept.events) == pytest.approx(2000 * 2.0)


def disturb(fabric, step, how, done):
    """After `done` local steps, disturb the one after `step`: rank 1 sleeps in it, or all messages come late."""
    if done == step and how == "sleep" and fabric.rank == 1:
        time.sleep(HELD_UP_S)
    elif how == "late":
        make_late(fabric, HELD_UP_S if done == step else 0.0)
    elif how == "always late":  # but messages of an evaluation need not be late too
        make_late(fabric, LATE_S if done % EVERY else 0.0)


def node_events(fabric, configs, folder, step, how, stops):
    """The events of each cell of `configs`, which is disturbed after `step`, stops at `stops` and resumes."""
    stalls.TIMES = 5  # a busy machine has slow steps
    current.finish = partial(disturb, fabric, step, how)
    found = {}
    for name, config in configs.items():
        kept = Kept()
        for stop in [*stops, None]:
            fabric.recorder = Recorder(fabric.device)  # as in a new process
            workload = open_workload("toy", config.workload_options)
            sinks = Destinations([kept] if fabric.rank == 0 else [])
            stopping = StopsAt(stop) if stop else None
            RankTraining(RunDirectory(folder / name), config, workload, fabric, sinks, stopping).train()
        found[name] = [msgspec.to_builtins(event) for event in kept.events]
    return found


def events_of(folder, methods, *, step=0, how="", stops=(), **changed):
    """The stalls and the last evaluation of each of `methods`."""
    configs = {}
    for name, options in methods.items():
        (folder / name).mkdir()
        request = RunRequest(
            workload="toy", method=name, nodes=2, steps=STEPS, eval_every=EVERY, method_options=options, **changed
        )
        configs[name] = prepare_cell(request, lambda *_: None).config
    found = {}
    for name, events in on_nodes(node_events, 2, configs, folder, step, how, list(stops))[0].items():
        own = [msgspec.convert(event, Stall) for event in events if event["event"] == "stall"]
        last = [msgspec.convert(event, Evaluation) for event in events if event["event"] == "evaluation"][-1]
        found[name] = own, last
    return found


@pytest.mark.processes
def test_a_rank_that_is_held_up_has_a_name_and_its_seconds_are_those_of_the_train_clock(tmp_path):
    methods = {"ddp": {}, "local_sgd": {"local_steps": "3"}, "ist": {"local_steps": "3"}, "p3": {}}
    for name, (found, last) in events_of(tmp_path, methods, step=7, how="sleep").items():
        (stall,) = found
        assert (stall.rank, stall.operation, stall.count) == (1, "computing training step", 1), name
        assert stall.step == 8, name
        assert 1.0 <= stall.seconds <= last.train_s, name


@pytest.mark.processes
def test_where_every_rank_waits_for_the_others_the_operation_has_a_name(tmp_path):
    found, last = events_of(tmp_path, {"local_sgd": {"local_steps": "1"}}, step=7, how="late")["local_sgd"]
    (stall,) = found
    assert (stall.step, stall.rank) == (8, None)
    assert "averag" in stall.operation
    assert 1.0 <= stall.seconds <= last.train_s


@pytest.mark.processes
def test_exchanges_that_always_take_long_are_none_also_in_a_warm_up(tmp_path):
    methods = {"local_sgd": {"local_steps": "3", "ddp_rounds": "1"}}
    found, last = events_of(tmp_path, methods, how="always late")["local_sgd"]
    assert found == []
    assert last.train_s > 5 * LATE_S


@pytest.mark.processes
def test_a_run_that_resumes_has_the_stalls_of_its_checkpoint_and_no_other(tmp_path):
    (stall,), _ = events_of(tmp_path, {"ddp": {}}, step=4, how="sleep", stops=[8], checkpoint_every_s=0)["ddp"]
    assert stall.step == 5


def stall_at(step):
    return Stall(step=step, seconds=2.0)


def test_stalls_of_steps_that_were_lost_do_not_count():
    first, second, again = stall_at(3), stall_at(7), stall_at(7)
    assert stalls_of([start(), first, second]) == (first, second)
    assert stalls_of([start(), first, second, resume(3), again]) == (first, again)
    assert stalls_of([start(), first, resume(-1)]) == ()
    assert stalls_of([start(), first, start(), second]) == (second,)
