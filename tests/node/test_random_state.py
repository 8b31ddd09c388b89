"""Random numbers go on where they were, on the CPU and on a GPU."""

import random

import numpy as np
import pytest
import torch

from istbench.base.errors import UserError
from istbench.node.checkpoint import random_state, random_state_kept, seed_random_state, set_random_state
from istbench.node.machine_speed import matmul_gflops
from istbench.studies.conformance.training import through_disk

CPU, GPU = torch.device("cpu"), torch.device("cuda", 3)


@pytest.fixture
def gpus(monkeypatch):
    """Random states of pretended GPUs, by device."""
    states = {GPU: torch.arange(16, dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))
    return states


def test_the_cpus_goes_on_through_a_checkpoint():
    state = through_disk({"random": random_state(CPU)}, 0)["random"]
    assert state.keys() == {"cpu", "numpy", "python"}
    wanted = torch.rand(5)
    set_random_state(state, CPU)
    assert torch.equal(torch.rand(5), wanted)


def test_those_of_numpy_and_python_go_on_too():
    np.random.normal()  # the generators keep a second number
    random.gauss(0, 1)
    state = through_disk({"random": random_state(CPU)}, 0)["random"]
    wanted = [np.random.normal(), np.random.rand(), random.gauss(0, 1), random.random()]
    set_random_state(state, CPU)
    assert [np.random.normal(), np.random.rand(), random.gauss(0, 1), random.random()] == wanted


def test_measuring_how_fast_a_machine_is_draws_none_of_trainings():
    before = torch.get_rng_state()
    assert matmul_gflops(8, 8, 8, CPU) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_gpus_goes_on_beside_the_cpus(gpus):
    state = through_disk({"random": random_state(GPU)}, 0)["random"]
    wanted = torch.rand(5)
    gpus[GPU] = torch.zeros(16, dtype=torch.uint8)
    set_random_state(state, GPU)
    assert torch.equal(gpus[GPU], torch.arange(16, dtype=torch.uint8))
    assert torch.equal(torch.rand(5), wanted)


def test_a_checkpoint_of_the_cpu_is_refused_on_a_gpu(gpus):
    with pytest.raises(UserError, match="it has no random state of a GPU"):
        set_random_state(random_state(CPU), GPU)


@pytest.fixture
def seeds(monkeypatch):
    """Seeds of the generators of two pretended GPUs, which torch has `used` or not."""
    seeds, cuda = {"used": True, "now": [5, 5]}, torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "is_initialized", lambda: seeds["used"])
    monkeypatch.setattr(cuda, "get_rng_state_all", lambda: list(seeds["now"]))
    monkeypatch.setattr(cuda, "set_rng_state_all", lambda states: seeds.update(now=list(states)))
    monkeypatch.setattr(cuda, "manual_seed_all", lambda seed: seeds.update(now=[seed, seed]))
    return seeds


@pytest.mark.parametrize("used", [True, False])
def test_those_of_every_gpu_go_on_after_a_block_with_a_seed_of_its_own(seeds, used):
    seeds["used"] = used
    torch.random.default_generator.manual_seed(5)
    wanted = random_state(CPU)
    with random_state_kept(0):
        assert seeds["now"] == [0, 0]
        torch.rand(1)
    assert seeds["now"] == [5, 5]
    assert torch.equal(random_state(CPU)["cpu"], wanted["cpu"])


def test_a_block_without_a_seed_goes_on_where_it_is_and_takes_nothing_away(seeds):
    with random_state_kept():
        assert seeds["now"] == [5, 5]
        seed_random_state(7)
    assert seeds["now"] == [5, 5]
