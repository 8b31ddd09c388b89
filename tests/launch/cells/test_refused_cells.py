"""Sizes that cannot be allocated and batches that cannot be normalised are refused before any process starts."""

import pytest

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.run import RunRequest
from istbench.base.options.shares import Shares
from istbench.launch.cells.resolve import prepare_cell


def prepare(method="ddp", *, workload="toy", here=None, **fields):
    return prepare_cell(RunRequest(workload=workload, method=method, **fields), lambda *_: None, here=here)


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "ist", "p3"])
@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("toy", {"samples": 2**40}),
        ("toy", {"hidden": 2**21}),
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
    monkeypatch.setattr("istbench.plan.step.optimizer_scratch", lambda *_, **__: 10**6)
    monkeypatch.setattr("istbench.launch.cells.refusals.WORKER_BYTES", 0)
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


def with_shares(method, text, **fields):
    shares = Shares.decode(text)
    return prepare(method, nodes=len(shares.speeds) or 3, shares=shares, steps=1, **fields)


@pytest.mark.parametrize("method", ["ddp", "zero", "fsdp", "p3", "local_sgd", "diloco", "sparseloco", "ist"])
@pytest.mark.parametrize("text", [".5,1,1", "speed"])
def test_shares_make_a_cell_of_their_own(method, text):
    cell = with_shares(method, text)
    assert cell.config.shares == Shares.decode(text)
    assert f"shares={Shares.decode(text)}" in cell.method_label
    assert cell.cell != prepare(method, nodes=3, steps=1).cell


@pytest.mark.parametrize(
    ("method", "text", "fields", "message"),
    [
        (
            "model_parallel",
            "1,2",
            {"workload": "amazon670k"},
            "model_parallel takes one minibatch on all",
        ),
        (
            "dslide",
            "1,2",
            {"workload": "amazon670k"},
            "dslide takes one minibatch on all nodes; leave",
        ),
        ("noloco", "speed", {}, "noloco has no mean over unequal minibatches; leave it out, or use ddp"),
        (
            "ddp",
            "1e-3,1",
            {"batch_size": 4},
            "1 leaves node 0 without one of the 8 samples of a step; give it a larger",
        ),
        (
            "ist",
            "1,1e-4",
            {},
            "leaves node 1 without one of the 16 units of neuron group 'hidden1'; give it a larger",
        ),
        ("ist", "1,2", {"method_options": {"coverage": 2}}, "deals each unit to one node, but coverage=2; leave"),
        (
            "ddp",
            "1,20",
            {"batch_size": 8, "workload_options": {"batch_norm": True}},
            r"batch size 1 gives BatchNorm \(norm1\) a single sample",
        ),
    ],
)
def test_shares_that_cannot_work_are_refused_in_one_line(method, text, fields, message):
    with pytest.raises(UserError, match=message) as error:
        with_shares(method, text, **fields)
    assert "\n" not in str(error.value)


def test_the_largest_subnet_of_unequal_nodes_needs_the_memory(monkeypatch):
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 2**30 * 3 // 10)
    fields = {"workload_options": {"hidden": 8000, "layers": 2}, "here": 1}
    assert with_shares("ist", "1,1,1,1", **fields).config.nodes == 4
    with pytest.raises(UserError, match="needs at least"):
        with_shares("ist", "1,1,1,97", **fields)


def test_more_workers_than_the_memory_holds_are_refused(monkeypatch):
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 2**32)
    assert prepare("ddp", nodes=20, batch_size=1).config.nodes == 20
    with pytest.raises(UserError, match="99 nodes needs at least 9.7 GiB, .* has 4.0; use fewer nodes"):
        prepare("ddp", nodes=99, batch_size=1)


def test_unequal_nodes_of_one_machine_need_what_equal_ones_do_and_one_elsewhere_may_be_the_fullest(monkeypatch):
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 2**32)
    fields = {"workload": "cifar10", "batch_size": 256}
    for shares in ("1,1", "1,60"):
        assert with_shares("ddp", shares, **fields).config.nodes == 2
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 2**31)
    assert with_shares("ddp", "1,1", here=1, **fields).config.nodes == 2
    with pytest.raises(UserError, match="needs at least"):
        with_shares("ddp", "1,60", here=1, **fields)
