"""Sizes that cannot be allocated and batches that cannot be normalised are refused before any process starts."""

import pytest

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell


def prepare(method="ddp", *, workload="toy", **fields):
    return prepare_cell(RunRequest(workload=workload, method=method, **fields), lambda *_: None)


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "ist", "p3"])
@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("toy", {"samples": 2**40}),
        ("toy", {"hidden": 2**24}),
        ("toy", {"features": 2**24, "samples": 2**20}),
        ("translation", {"words": 2**24, "embedding": 2**20}),
        ("imagenet", {"samples": 2**30}),
    ],
)
def test_what_this_machine_cannot_hold_is_refused_with_sizes(method, workload, options):
    if method == "ist" and workload != "toy":
        pytest.skip("has no groups to cut")
    with pytest.raises(UserError, match=r"needs at least [\d,.]+ GiB, but this machine has [\d.]+; use fewer"):
        prepare(method, workload=workload, workload_options=options, nodes=2)


def test_a_subnet_is_smaller_than_the_model():
    # 24 GB with its gradient on a node of data parallel, a hundredth of that in each of 16 subnets.
    options = {"hidden": 50_000, "layers": 2}
    assert prepare("ist", workload_options=options, nodes=16, steps=1).config.nodes == 16
    with pytest.raises(UserError, match="needs at least"):
        prepare("ddp", workload_options=options, nodes=16)


def test_what_an_optimizers_step_makes_is_looked_at_only_where_it_may_be_too_much(monkeypatch):
    monkeypatch.setattr("istbench.plan.memory.optimizer_scratch", lambda *_, **__: 10**6)
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 2**20)
    assert prepare().config.nodes == 1  # a mebibyte is far more than a toy's step can take
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 60_000)
    with pytest.raises(UserError, match="optimizer scratch"):
        prepare()


def test_more_threads_than_cores_are_refused():
    assert prepare(threads=cores()).config.threads == cores()
    with pytest.raises(UserError, match=f"--threads {cores() + 1} is more than this machine's cores; use at most"):
        prepare(threads=cores() + 1)


@pytest.mark.parametrize(
    ("method", "batch_size", "options"),
    [("ddp", 1, {}), ("ist", 1, {}), ("p3", 4, {"accumulation_steps": 4}), ("p3", 3, {"accumulation_steps": 2})],
)
def test_batch_norm_needs_two_samples(method, batch_size, options):
    fields = {"batch_size": batch_size, "method_options": options}
    assert prepare(method, **fields).config.batch_size == batch_size
    with pytest.raises(UserError, match=rf"batch size {batch_size} gives BatchNorm \(norm1\) a single sample"):
        prepare(method, workload_options={"batch_norm": True}, **fields)
