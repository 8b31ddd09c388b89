"""`--shares speed`: measured once, and the same in every part of a run."""

import msgspec
import pytest
import torch
from fake_runs import resume, start
from ranks import on_ranks

from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.base.options.shares import Shares
from istbench.fabric.recorder import Recorder
from istbench.node import measured_shares
from istbench.node.destinations import Destinations, RunFiles
from istbench.node.measured_shares import relative_speeds, with_measured_shares
from istbench.results.events import Speeds, speeds_of
from istbench.results.store import RunDirectory

CONFIG = RunConfig(
    workload="toy", method="ddp", nodes=3, seed=0, workload_options={}, method_options={}, batch_size=4, steps=2,
    eval_every=Interval(steps=1), device="cpu", shares=Shares(),
)  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    def slow_first_node(config, workload, fabric):
        fabric.barrier("kept")  # the ranks are threads, which share the random state: all have kept it now
        torch.rand(3)
        assert config.shares is None
        assert fabric.recorder is not RECORDERS[fabric.rank]
        return [0.5, 0.25, 0.26]

    monkeypatch.setattr(measured_shares, "step_seconds", slow_first_node)
    run = RunDirectory(tmp_path)
    run.append(start())
    return run


RECORDERS = [Recorder(torch.device("cpu")) for _ in range(3)]


def resolved(run, config=CONFIG):
    """The shares of `config` on each of three ranks."""

    def act(fabric):
        fabric.recorder = RECORDERS[fabric.rank]
        destinations = Destinations([RunFiles(run)] if fabric.rank == 0 else [])
        found = with_measured_shares(run, config, None, fabric, destinations).shares
        assert fabric.recorder is RECORDERS[fabric.rank]
        return found

    return on_ranks(3, act)


def test_all_ranks_take_the_measured_speeds_and_the_run_records_them(run):
    assert resolved(run) == [Shares((0.5, 1, 0.962))] * 3
    assert run.events()[1:] == [Speeds(speeds=(0.5, 1, 0.962), step_s=(0.5, 0.25, 0.26))]


def test_a_resumed_run_keeps_its_speeds_and_a_new_one_measures_again(run, monkeypatch):
    first = resolved(run)
    monkeypatch.setattr(measured_shares, "step_seconds", lambda *_: [1.0, 1.0, 4.0])
    run.append(resume(-1))
    assert resolved(run) == first
    run.append(start())
    assert speeds_of(run.events()) == ()
    assert resolved(run) == [Shares((1, 1, 0.25))] * 3


def test_given_speeds_and_equal_nodes_need_no_measurement(run):
    for shares in (None, Shares((1, 2, 3))):
        assert resolved(run, msgspec.structs.replace(CONFIG, shares=shares)) == [shares] * 3
    assert len(run.events()) == 1


def test_random_numbers_of_training_stay_as_they_are(run):
    torch.manual_seed(7)
    wanted = torch.rand(1)
    torch.manual_seed(7)
    resolved(run)
    assert torch.equal(torch.rand(1), wanted)


def test_speeds_are_relative_to_the_fastest_node():
    assert relative_speeds([2.0, 1.0, 3.0]) == (0.5, 1.0, 0.333)
    assert relative_speeds([0.0, 1.0]) == (1.0, 0.001)
