"""The simulation without compiling."""

import numpy as np
import pytest
from traces import cluster, random_trace

from istbench.base.jit import jit_whole
from istbench.cluster.simulator import replay, simulate
from istbench.cluster.simulator.simulate import Simulation


@pytest.mark.parametrize("seed", range(4))
def test_interpreting_gives_the_same_bits(seed, monkeypatch):
    random = np.random.default_rng(seed)
    trace = random_trace(random, nodes=3, operations=4, rounds=2)
    profile = cluster(cores=2, cpu_s_per_byte=1e-8, cpu_s_per_message=1e-4, burst_bytes=9_000)
    monkeypatch.setattr(simulate, "simulation", lambda steps: jit_whole(simulate.simulate))
    compiled = replay(trace, profile, compute_scale=1.0, spans=True)
    monkeypatch.setattr(simulate, "simulation", lambda steps: simulate.simulate_interpreted)
    plain = replay(trace, profile, compute_scale=1.0, spans=True)
    assert np.array_equal(plain.finish_s, compiled.finish_s)
    assert plain.spans == compiled.spans


def test_few_steps_do_not_wait_for_compiling(monkeypatch):
    monkeypatch.setattr(simulate, "is_compiled", lambda function: False)
    simulation = Simulation()
    assert simulation(100) is simulate.simulate_interpreted
    assert simulation(10**6) is jit_whole(simulate.simulate)


def test_many_short_replays_are_worth_compiling(monkeypatch):
    monkeypatch.setattr(simulate, "is_compiled", lambda function: False)
    simulation = Simulation()
    found = [simulation(4_000) is jit_whole(simulate.simulate) for _ in range(6)]
    assert found == [False, False, False, True, True, True]


def test_a_few_steps_do_not_even_load_what_is_compiled(monkeypatch):
    monkeypatch.setattr(simulate, "is_compiled", lambda function: True)
    monkeypatch.setattr(simulate, "compiler_is_loaded", lambda: False)
    simulation = Simulation()
    assert simulation(100) is simulate.simulate_interpreted
    assert simulation(2_000) is jit_whole(simulate.simulate)
