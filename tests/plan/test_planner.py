"""Plans against bytes worked out by hand, and against what real nodes count. `node_*` run on every node."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.base.options.shares import Shares
from istbench.cli.plan_command import plan_table
from istbench.cluster.profile import Rack, load_profile
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods import wide_layers
from istbench.node.registry import build_method, build_workload
from istbench.plan.planner import make_plan
from istbench.plan.step import node_memory, step_cost
from istbench.studies.conformance.training import open_workload, set_up, train
from istbench.workloads.contract import blank_model

METHODS = ("ddp", "zero", "fsdp", "local_sgd", "sparseloco", "noloco", "ist", "parameter_server", "p3")
IN_ROUNDS = ("local_sgd", "sparseloco", "noloco", "ist")
PLUGINS = Path(__file__).parent / "plugins.py"
CLUSTER = dataclasses.replace(load_profile("m5.2xlarge"), memory_gib=0.02)

# The toy workload with 8 inputs, two hidden layers of 16 units and 4 outputs.
WEIGHTS = 8 * 16 + 16 * 16 + 16 * 4
BIASES = 16 + 16 + 4
PARAMETERS = 4 * (WEIGHTS + BIASES)


def plan(method, *, cluster=CLUSTER, workload="toy", nodes=2, options=None, limits=False, **fields):
    return make_plan(
        RunRequest(workload=workload, method=method, nodes=nodes, method_options=options or {}, **fields),
        cluster,
        limits=limits,
    )


def memory_of(method, *, nodes=2, hidden=16, options=None):
    workload = build_workload("toy", {"hidden": hidden})
    model = blank_model(workload)
    footprint = build_method(method, options or {}, workload=workload).footprint(model, workload, nodes, 16)
    cost = step_cost(
        footprint.model,
        workload,
        footprint.samples,
        copied=footprint.gradients_copied,
        updates_wide=footprint.updates_wide_layers,
    )
    return node_memory(footprint, cost)


def small_cluster(megabytes):
    return dataclasses.replace(CLUSTER, memory_gib=megabytes * 1e6 / 2**30)


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "parameter_server", "p3"])
@pytest.mark.parametrize(("options", "slots"), [({}, 0), ({"momentum": 0.9}, 1), ({"optimizer": "adam"}, 2)])
def test_parameters_gradients_and_slots_of_methods_that_keep_the_model(method, options, slots):
    memory = memory_of(method, options=options)
    assert (memory.parameters, memory.gradients) == (PARAMETERS, PARAMETERS)
    served = method in ("parameter_server", "p3")
    # Two servers: six tensors are dealt out in turn, the weights to node 0 and the biases to node 1.
    own = 4 * WEIGHTS if served else PARAMETERS
    assert memory.optimizer_state == slots * own
    assert memory.buffers == (own if served else 0)
    assert memory.total == sum(memory.parts.values())


@pytest.mark.parametrize(
    ("method", "options", "wide", "gradients"),
    [
        ("local_sgd", {}, 16 * 16, PARAMETERS - 4 * 16 * 16),
        ("local_sgd", {"momentum": 0.9}, 16 * 16, PARAMETERS),
        ("local_sgd", {"clip": 1.0}, 16 * 16, PARAMETERS),
        ("diloco", {"optimizer": "sgd", "lr": 0.1}, 16 * 16, PARAMETERS - 4 * 16 * 16),
        ("ist", {}, 8 * 8, 4 * (8 * 4 + 8 + 8 + 4)),
        ("ddp", {}, 16 * 16, PARAMETERS),
    ],
)
def test_weights_that_the_backward_pass_updates_have_no_gradient(monkeypatch, method, options, wide, gradients):
    monkeypatch.setattr(wide_layers, "WIDE", wide)
    assert memory_of(method, options=options).gradients == gradients


def test_on_a_gpu_all_weights_have_gradients(monkeypatch):
    monkeypatch.setattr(wide_layers, "WIDE", 16 * 16)
    on_cpus, on_gpus = (plan("local_sgd", cluster=load_profile(name)) for name in ("m5.2xlarge", "p3.2xlarge"))
    assert on_gpus.memory.gradients - on_cpus.memory.gradients > 0


@pytest.mark.parametrize(("options", "slots"), [({}, 0), ({"momentum": 0.9}, 1), ({"optimizer": "adam"}, 2)])
def test_an_nth_of_all_or_of_the_optimizers_state_alone(options, slots):
    sharded = memory_of("fsdp", options=options)
    assert (sharded.parameters, sharded.gradients) == (PARAMETERS // 2, PARAMETERS // 2)
    assert sharded.optimizer_state == slots * PARAMETERS // 2
    assert sharded.buffers == PARAMETERS + 4 * (WEIGHTS + BIASES - 16 * 16)  # all at once, and the other gradients
    assert sharded.total == sum(sharded.parts.values())
    dealt = memory_of("zero", options=options)
    assert (dealt.parameters, dealt.gradients, dealt.buffers) == (PARAMETERS, PARAMETERS, 0)
    # The weights between hidden units are more than all others together.
    assert dealt.optimizer_state == slots * 4 * 16 * 16


@pytest.mark.parametrize(("options", "planes"), [({}, 1), ({"momentum": 0.9}, 2), ({"optimizer": "adam"}, 3)])
def test_a_subnet_and_its_home_shards(options, planes):
    memory = memory_of("ist", options=options)
    subnet = 4 * (8 * 8 + 8 * 8 + 8 * 4 + 8 + 8 + 4)
    home = 4 * 8 * 16  # of the one tensor that is cut along two axes
    assert (memory.parameters, memory.gradients) == (subnet + home, subnet)
    assert memory.optimizer_state == (planes - 1) * (subnet + home)
    # Gathered: what a subnet holds of cut tensors, and the quarter of its home shard's half that none trained and
    # some node trains next. Arrived: half of the first, and three sixteenths of the other.
    one_axis, two_axes = 4 * (8 * 8 + 8 * 4 + 8 + 8), 4 * 16 * 16
    gathered = one_axis + two_axes * (1 / 4 + 1 / 8)
    arrived = one_axis / 2 + two_axes * 3 / 16
    counts = 6 if planes == 3 else 0  # of the updates of each parameter, by Adam
    averaged = 2 * 8 * (4 * planes + counts)  # float64, once more flat: the output bias, and these
    assert memory.round_buffers == round(planes * (gathered + arrived)) + averaged


def test_ist_without_carried_state_sends_none():
    carried, reset = (
        plan("ist", options={"momentum": 0.9, "optimizer_state": what}) for what in ("carry", "reset")
    )
    assert carried.sent == pytest.approx(2 * reset.sent, abs=2)
    assert reset.sent == plan("ist").sent


@pytest.mark.parametrize("nodes", [2, 8])
def test_streaming_holds_and_sends_no_more(nodes):
    """One hidden layer: what is sent is that of all at once, a fifth of it at a time."""
    sizes = {"hidden": 2048, "layers": 1, "samples": 2**17}
    options = {"workload_options": sizes, "nodes": nodes, "batch_size": 2**14}
    streaming = plan("streaming_ist", options={"local_steps": 5}, **options)
    ordinary = plan("ist", options={"local_steps": 5}, **options)
    assert 0.98 * ordinary.sent < streaming.sent <= 1.001 * ordinary.sent
    assert streaming.seconds < ordinary.seconds
    held, whole = (
        memory_of(method, nodes=nodes, hidden=2048, options={"local_steps": 20})
        for method in ("streaming_ist", "ist")
    )
    assert (held.parameters, held.gradients) == (whole.parameters, whole.gradients)
    # Two turns: a tenth of a layer's units fly, out and in.
    assert held.buffers < 0.25 * held.parameters


def test_a_warm_up_needs_the_memory_of_the_whole_model():
    warm, without, whole = (
        plan(method, options=options).memory
        for method, options in (("ist", {"warmup_rounds": 3}), ("ist", {}), ("local_sgd", {}))
    )
    assert (warm.parameters, warm.gradients) == (PARAMETERS, PARAMETERS)
    assert without.total < warm.total == whole.total
    assert plan("ist", options={"warmup_rounds": 3}).sent == plan("ist").sent


@pytest.mark.parametrize(("own", "planes"), [({"optimizer": "adam"}, 3), ({"momentum": 0.9}, 2)])
@pytest.mark.parametrize("state", ["carry", "reset"])
def test_the_first_deal_builds_a_share_beside_the_whole_model(own, planes, state):
    workload = build_workload("toy", {"hidden": 16})
    model = blank_model(workload)
    options = {**own, "optimizer_state": state, "warmup_rounds": 3}
    footprint = build_method("ist", options, workload=workload).footprint(model, workload, 2, 16)
    subnet, home, bias = 4 * (8 * 8 + 8 * 8 + 8 * 4 + 8 + 8), 4 * 8 * 16, 4 * 4
    built = (planes if state == "carry" else 1) * (subnet + home) + bias  # the bias takes its state over
    assert footprint.before.round_buffers == max(0, built - PARAMETERS)
    assert (footprint.before.round_buffers > 0) == (state == "carry")


def test_a_warm_up_is_in_the_notes_of_a_plan_and_on_one_node_there_is_none():
    said = [" ".join(plan("ist", nodes=nodes, options={"warmup_rounds": 3}).assumed) for nodes in (2, 1)]
    assert "in the first 3 rounds the nodes train and average the whole model; a later round is planned" in said[0]
    assert "first 3 rounds" not in said[1]


def test_one_node_sends_nothing():
    assert [plan(method, nodes=1).sent for method in METHODS] == [0] * len(METHODS)


# What ist sends is the mean over random partitions; of others, every round says the same.
ROUNDS = {name: 40 if name == "ist" else 4 for name in METHODS}


def node_bytes(fabric):
    """Bytes that this node sent a round, by method."""
    workload = open_workload("toy", {"hidden": 128})
    counted = []
    for name in METHODS:
        method = set_up(fabric, workload, name, {"local_steps": 1} if name in IN_ROUNDS else {})
        fabric.traffic["training"].sent = 0
        train(fabric, workload, method, 0, ROUNDS[name])
        method.drain()
        fabric.barrier("counting")
        counted.append(fabric.traffic["training"].sent / ROUNDS[name])
    return counted


@pytest.mark.processes
def test_bytes_a_round_are_those_that_nodes_count():
    counted = on_nodes(node_bytes, 2)
    for name, each in zip(METHODS, zip(*counted, strict=True), strict=True):
        options = {"local_steps": 1} if name in IN_ROUNDS else {}
        planned = plan(name, options=options, workload_options={"hidden": 128}).sent
        if name == "ist":
            assert sum(each) / len(each) == pytest.approx(planned, rel=0.06)
        else:
            assert max(each) == planned


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(METHODS), st.integers(8, 200), st.integers(1, 100), st.integers(1, 8))
def test_a_wider_model_takes_no_less(method, width, more, nodes):
    one, other = (memory_of(method, nodes=nodes, hidden=hidden).total for hidden in (width, width + more))
    assert one <= other


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 30), st.integers(1, 30))
def test_a_subnet_takes_no_more_on_more_nodes(nodes, more):
    few, many = (memory_of("ist", nodes=count, hidden=240).total for count in (nodes, nodes + more))
    assert many <= few


@pytest.mark.parametrize("method", METHODS)
def test_the_largest_width_fits_and_the_next_does_not(method):
    cluster = small_cluster(3)
    largest = plan(method, cluster=cluster, limits=True).largest_width
    assert plan(method, cluster=cluster, workload_options={"hidden": largest}).fits
    assert not plan(method, cluster=cluster, workload_options={"hidden": largest + 1}).fits


def test_the_fewest_nodes_fit_and_one_less_do_not():
    wide = {"hidden": 1000}
    fewest = plan("ist", cluster=small_cluster(3), workload_options=wide, limits=True).fewest_nodes
    assert fewest > 2
    assert plan("ist", cluster=small_cluster(3), workload_options=wide, nodes=fewest).fits
    assert not plan("ist", cluster=small_cluster(3), workload_options=wide, nodes=fewest - 1).fits
    alone = plan("ddp", cluster=small_cluster(3), workload_options=wide, limits=True)
    assert (alone.fits, alone.fewest_nodes) == (False, None)


def test_a_width_that_a_workload_has_not_is_not_the_answer():
    fields = {"workload": "even", "plugins": (str(PLUGINS),)}
    largest = plan("ddp", cluster=small_cluster(3), limits=True, **fields).largest_width
    assert largest % 2 == 0
    for hidden, holds in ((largest, True), (largest + 2, False)):
        assert plan("ddp", cluster=small_cluster(3), workload_options={"hidden": hidden}, **fields).fits is holds


@pytest.mark.parametrize(("heads", "width"), [(4, 128), (12, 768)])
def test_heads_divide_the_largest_width_and_the_next_does_not_fit(heads, width):
    fields = {"workload": "text", "cluster": small_cluster(100)}

    def planned(width, **more):
        options = {"heads": heads, "layers": 1, "width": width}
        return plan("ddp", workload_options=options, **fields, **more)

    largest = planned(width, limits=True).largest_width
    assert largest % heads == 0
    assert planned(largest).fits
    assert not planned(largest + heads).fits


def test_a_method_that_says_nothing_is_planned_as_unknown():
    unknown = plan("silent", limits=True, plugins=(str(PLUGINS),))
    said = unknown.as_json()
    for field in ("fits", "memory_bytes_per_node", "exchange_bytes_per_node_per_round", "seconds_per_round"):
        assert said[field] is None
    assert (unknown.largest_width, unknown.fewest_nodes) == (None, None)
    assert "has no footprint" in unknown.assumed[0]


def test_slower_links_make_longer_rounds_and_computing_is_the_least():
    for method in METHODS:
        fast, slow = (plan(method, cluster=CLUSTER.with_bandwidth(bits)) for bits in (1e12, 1e6))
        assert 0 < fast.compute_seconds < fast.seconds < slow.seconds


def test_an_uplink_or_a_slow_node_makes_rounds_longer():
    plain = plan("local_sgd", nodes=4)
    narrow = dataclasses.replace(CLUSTER, rack=Rack(hosts=2, uplink=CLUSTER.bandwidth_out / 4))
    assert plan("local_sgd", nodes=4, cluster=narrow).seconds > plain.seconds
    slow = plan("local_sgd", nodes=4, cluster=dataclasses.replace(CLUSTER, speeds=(1.0, 0.5)))
    assert slow.compute_seconds == pytest.approx(2 * plain.compute_seconds)
    assert slow.seconds == pytest.approx(plain.seconds + plain.compute_seconds)
    table = plan_table(plan("local_sgd", nodes=4, cluster=narrow))
    assert any("2 hosts share an uplink of" in line for line in table.footer)


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "fsdp"])
def test_one_node_stands_for_all_that_do_the_same(method, monkeypatch):
    for nodes in (3, 8, 17):
        for cluster in (CLUSTER, dataclasses.replace(CLUSTER, full_duplex=False)):
            short = plan(method, nodes=nodes, cluster=cluster)
            with monkeypatch.context() as context:
                context.setattr("istbench.plan.planner.one_stands_for_all", lambda *_: False)
                context.setattr("istbench.cluster.simulator.run.fold", lambda trace, turn: trace)
                assert short.seconds == pytest.approx(plan(method, nodes=nodes, cluster=cluster).seconds, rel=1e-9)


WIDE = {"workload": "amazon670k", "nodes": 4}


@pytest.mark.parametrize("method", ["sampled_softmax", "dslide"])
def test_kernels_of_a_methods_own_take_the_time_to_gather_and_none_is_known_on_a_gpu(method):
    there = load_profile("m5.2xlarge")
    planned = plan(method, cluster=there, **WIDE)
    slower = dataclasses.replace(there, gather_gb_per_s=there.gather_gb_per_s / 2)
    assert planned.compute_seconds > 0.02
    assert plan(method, cluster=slower, **WIDE).compute_seconds > 1.8 * planned.compute_seconds
    on_gpu = plan(method, cluster=load_profile("p3.2xlarge"), **WIDE)
    assert (on_gpu.seconds, on_gpu.compute_seconds) == (None, None)
    assert any("kernels for processors only" in line for line in on_gpu.assumed)


def test_thousands_of_nodes_are_planned():
    few, many = (plan("ddp", nodes=nodes) for nodes in (2048, 4096))
    # Twice the nodes send twice as many messages one after the other, and hardly more bytes.
    assert many.seconds - many.compute_seconds == pytest.approx(2 * (few.seconds - few.compute_seconds), rel=0.01)


def test_seconds_of_too_many_messages_are_unknown_and_said_to_be(monkeypatch):
    monkeypatch.setattr("istbench.cluster.estimate.MOST_MESSAGES", 100)
    unknown = plan("p3", nodes=8)
    assert unknown.seconds is None
    assert unknown.sent > 0
    assert any("seconds of a round are unknown" in line for line in unknown.assumed)
    assert plan("ddp", nodes=8).seconds > 0


def test_a_broadcast_goes_round_a_ring_with_nccl():
    """The weights between hidden units are most of the model; one node broadcasts them to seven others."""
    rates = {"overhead_s": 0.0, "latency_s": 0.0, "gflops": 1e9}
    seconds, sent = {}, {}
    for backend in ("gloo", "nccl"):
        cluster = dataclasses.replace(CLUSTER, backend=backend, **rates)
        for method in ("ddp", "zero"):
            found = plan(method, nodes=8, cluster=cluster, workload_options={"hidden": 4096})
            seconds[backend, method], sent[backend, method] = found.seconds, found.sent
    assert seconds["nccl", "ddp"] == pytest.approx(seconds["gloo", "ddp"], rel=1e-6)
    model = seconds["nccl", "ddp"] / 1.75
    assert seconds["gloo", "zero"] == pytest.approx((1.75 + 6) * model, rel=0.02)
    assert seconds["nccl", "zero"] == pytest.approx((1.75 + 1) * model, rel=0.04)
    assert sent["gloo", "zero"] - sent["gloo", "ddp"] == pytest.approx(3 * 4 * 4096**2, rel=0.02)
    assert sent["nccl", "zero"] - sent["nccl", "ddp"] == pytest.approx(4 * 4096**2, rel=0.02)


def test_zero_on_eight_gpus_is_charged_one_broadcast():
    """Amazon-670K's network: five sixths of the model are one parameter, and so one broadcast."""
    cell = {"workload": "amazon670k", "nodes": 8, "options": {"optimizer": "sgd"}}
    gpus = load_profile("p3.2xlarge")
    ring, tree = (
        plan(
            "zero", cluster=dataclasses.replace(gpus, backend=backend), workload_options={"hidden": 512}, **cell
        ).seconds
        for backend in ("nccl", "gloo")
    )
    assert 2.3 < tree / ring < 2.5


def test_fsdp_on_gpus_holds_no_second_buffer_of_gradients():
    """The widest of Amazon-670K's networks on eight V100s; with gloo the parts of all nodes would arrive beside."""
    cell = {"workload": "amazon670k", "nodes": 8, "options": {"optimizer": "adam"}}
    gpus = load_profile("p3.2xlarge")
    on_gpus = plan("fsdp", cluster=gpus, workload_options={"hidden": 2048}, **cell)
    by_gloo = plan(
        "fsdp", cluster=dataclasses.replace(gpus, backend="gloo"), workload_options={"hidden": 2048}, **cell
    )
    assert on_gpus.fits
    assert "collectives take the messages and the buffers of NCCL" in on_gpus.assumed
    assert by_gloo.memory.total > on_gpus.memory.total
    assert on_gpus.memory.total / 2**30 == pytest.approx(14.43, abs=0.01)


def test_a_round_of_local_sgd_is_its_steps_and_one_all_reduce():
    short, long = (plan("local_sgd", options={"local_steps": steps}) for steps in (1, 1001))
    assert long.seconds - short.seconds == pytest.approx(1000 * short.compute_seconds, rel=1e-6)
    assert long.sent == short.sent == PARAMETERS


def test_activations_that_cannot_be_counted_are_unknown():
    fields = {"workload": "opaque", "plugins": (str(PLUGINS),)}
    unknown = plan("local_sgd", **fields)
    assert (unknown.fits, unknown.memory.parts["activations"], unknown.seconds) == (None, None, None)
    assert unknown.sent == PARAMETERS
    assert unknown.memory.total == 2 * PARAMETERS + unknown.memory.data
    assert plan("local_sgd", cluster=small_cluster(0.001), **fields).fits is False


def test_a_cell_that_cannot_fit_runs_anyway(monkeypatch):
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 2_000)
    request = {"workload": "toy", "method": "ddp", "nodes": 2}
    with pytest.raises(UserError, match=r"try --anyway \(a node: parameters 0.00, .*data"):
        prepare_cell(RunRequest(**request), lambda *_: None)
    anyway = prepare_cell(RunRequest(**request, anyway=True), lambda *_: None)
    monkeypatch.undo()
    assert anyway.cell == prepare_cell(RunRequest(**request), lambda *_: None).cell


def test_activations_alone_can_be_too_much(monkeypatch):
    options = {"hidden": 64, "samples": 20_000}
    request = RunRequest(workload="toy", method="ddp", workload_options=options, batch_size=16_384)
    monkeypatch.setattr("istbench.launch.cells.refusals.WORKER_BYTES", 0)
    monkeypatch.setattr("istbench.launch.cells.refusals.memory_bytes", lambda: 10_000_000)
    with pytest.raises(UserError, match=r"activations 0\.0[1-9]"):
        prepare_cell(request, lambda *_: None)


@pytest.mark.parametrize(
    ("method", "options", "while_computing", "in_all"),
    [
        ("local_sgd", {}, 0, 1.0),
        ("diloco", {}, 0, 1.0),
        ("ddp", {"bucket_mb": 0.0005}, 0.5, 1.0),  # the last of the buckets leaves at the end of the backward pass
        ("p3", {}, 0, 0.0),
    ],
)
def test_distant_nodes_need_the_buffers_of_their_all_reduces(method, options, while_computing, in_all):
    far = dataclasses.replace(CLUSTER, latency_s=0.02)
    for cluster, more in ((far, in_all), (dataclasses.replace(far, in_turns=False), 0.0)):
        there, here = (plan(method, cluster=own, nodes=3, options=options) for own in (cluster, CLUSTER))
        buffers = [own.memory.buffers + own.memory.round_buffers for own in (there, here)]
        size = 3 * PARAMETERS * more  # small tensors of the two other nodes, and the mean
        assert buffers[0] - buffers[1] == pytest.approx(size, rel=0.01)
        assert there.memory.buffers - here.memory.buffers >= while_computing * size
        assert ("turns between distant nodes" in " ".join(there.assumed)) == (cluster is far)
        # A small tensor goes whole to both others; 4/3 of it in a ring.
        assert there.sent == pytest.approx(here.sent * (1.5 if more else 1.0), rel=0.01)


HALF = dataclasses.replace(CLUSTER, speeds=(0.5, 1.0, 1.0))


@pytest.mark.parametrize("method", ["ddp", "p3", "local_sgd", "diloco", "ist"])
def test_shares_by_speed_shorten_the_round_of_a_half_speed_node(method):
    options = {"local_steps": 4} if method in ("local_sgd", "diloco", "ist") else {}
    fields = {"nodes": 3, "cluster": HALF, "options": options, "workload_options": {"hidden": 96}, "batch_size": 64}
    equal, shared = plan(method, **fields), plan(method, shares=Shares(), **fields)
    assert shared.compute_seconds < equal.compute_seconds
    assert shared.seconds < equal.seconds
    assert plan(method, shares=Shares((0.5, 1, 1)), **fields).seconds == shared.seconds
    assert plan(method, shares=Shares((1, 1, 1)), **fields).seconds == equal.seconds
    assert shared.memory.total > equal.memory.total  # of a fast node
    assert any("shares 0.5,1,1" in line for line in shared.assumed)
    if method != "ist":  # of 192 samples, 38, 77 and 77 in place of 64 each on the slow node
        assert shared.compute_seconds == pytest.approx(equal.compute_seconds * 77 / 64 / 2, rel=0.02)


def test_shares_that_a_method_cannot_take_are_refused_by_the_plan():
    for method, shares, message in (
        ("noloco", Shares(), "noloco has no mean over unequal minibatches"),
        ("ddp", Shares((1, 2)), "has 2 numbers for 3 nodes"),
        ("ist", Shares((1e-3, 1, 1)), "without one of the 16 units"),
    ):
        with pytest.raises(UserError, match=message):
            plan(method, nodes=3, shares=shares)
