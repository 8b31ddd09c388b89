"""From IST to local SGD: `deal`, `coverage`, `moving` and `warmup_rounds`, on three gloo processes."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from image_networks import TinyImages
from reference_ist import reference_ist

from istbench.base.options.run import RunRequest
from istbench.cluster.profile import load_profile
from istbench.cluster.trace import POST
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.digest import weights_sha256
from istbench.plan.planner import make_plan
from istbench.studies.conformance.of_methods import reads_in_blocks
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    open_workload,
    set_up,
    through_disk,
    train,
)
from istbench.workloads.contract import blank_model
from istbench.workloads.neuron_groups.layout import layout_of, select, subnet_index
from istbench.workloads.neuron_groups.partition import Deals, home_partition
from istbench.workloads.toy import Toy, ToyOptions

NODES = 3
STEPS, LOCAL_STEPS = 8, 3  # the last round stays open
STOPS = (2, 3, 7)
WIDE, ROUNDS = {"hidden": 128}, 20
PLAIN = {"hidden": 13, "layers": 3}
NORMALISED = {**PLAIN, "batch_norm": True}
MOMENTUM = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "local_steps": LOCAL_STEPS}
ADAM = {"optimizer": "adam", "lr": 0.01, "local_steps": LOCAL_STEPS}
RESUMED = {
    "coverage": ("ist", {**MOMENTUM, "coverage": 2}),
    "moving": ("ist", {**ADAM, "coverage": 2, "moving": 0.3}),
    "deal": ("ist", {**MOMENTUM, "deal": "hidden2", "optimizer_state": "reset"}),
    "warm-up": ("ist", {**ADAM, "warmup_rounds": 2}),
    "streaming": (
        "streaming_ist",
        {**MOMENTUM, "local_steps": 2, "deal": "hidden1,hidden3", "moving": 0.6, "warmup_rounds": 1},
    ),
}
AGAINST_REFERENCE = {
    "two of three": (PLAIN, {"coverage": 2}),
    "a walk": (PLAIN, {"coverage": 2, "moving": 0.3}),
    "one layer": (NORMALISED, {"deal": "hidden2"}),
}
COUNTED = {
    "two of three": {"momentum": 0.9, "coverage": 2},
    "a walk": {"coverage": 2, "moving": 0.3},
    "one layer": {"momentum": 0.9, "deal": "hidden1", "moving": 0.5},
}
MOSTLY_WHOLE = {"sgd": MOMENTUM, "adam": ADAM, "reset": {**ADAM, "optimizer_state": "reset"}}
FIRST_DEALS = {"momentum": MOMENTUM, "adam": ADAM, "reset": {**MOMENTUM, "optimizer_state": "reset"}}
EXACT = 2e-5  # float32 sums in another order
EXACT_DOUBLE = 1e-8


class LateImages(TinyImages):
    """ResNet18 whose other groups do not exist."""

    def neuron_groups(self, model):
        return [group for group in super().neuron_groups(model) if group.late]


class OneFound(Toy):
    """Three hidden layers, of which the second alone has a group: most values are in no group."""

    def neuron_groups(self, model):
        return [group for group in super().neuron_groups(model) if group.name == "hidden2"]


def one_found(options):
    """`OneFound` with its data open."""
    workload = OneFound(ToyOptions(**options))
    workload.open(workload.prepare(None, Path(), lambda *_: None))
    return workload


def node_all(fabric):
    """What each of these saw on this node, by name."""
    return {
        "local_sgd": {name: like_local_sgd(fabric, own) for name, own in {"sgd": MOMENTUM, "adam": ADAM}.items()},
        "far": far_and_near(fabric),
        "warm-up": warm_up(fabric),
        "reference": against_reference(fabric),
        "late": late(fabric),
        "mostly whole": {name: mostly_whole(fabric, own) for name, own in MOSTLY_WHOLE.items()},
        "still": still(fabric),
        "bytes": {name: bytes_a_round(fabric, own) for name, own in COUNTED.items()},
        "resumed": {name: resumed(fabric, *case) for name, case in RESUMED.items()},
    }


@pytest.fixture(scope="module")
def seen():
    return on_nodes(node_all, NODES)


def floats_of(model):
    """The bytes of all parameters, and of floating-point buffers."""
    return b"".join(
        tensor.numpy().tobytes() for tensor in model.state_dict().values() if tensor.is_floating_point()
    )


def parameters_of(model):
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def trained(fabric, workload, name, options, seen_of=floats_of):
    """The assembled model after each step, the bytes that this node sent, and its trace."""
    before = fabric.traffic["training"].sent
    recorder = fabric.recorder = Recorder(fabric.device)
    method, models = set_up(fabric, workload, name, options), []
    for step in range(STEPS):
        train(fabric, workload, method, step, step + 1)
        recorder.mark("step")
        model = assembled(fabric, method)
        models.append(model and seen_of(model))
    events = [(int(event["code"]), int(event["bytes"])) for event in recorder.events()]
    return models, fabric.traffic["training"].sent - before, events


def like_local_sgd(fabric, options):
    workload = open_workload("toy", NORMALISED)
    return trained(fabric, workload, "ist", {**options, "coverage": NODES}) == trained(
        fabric, workload, "local_sgd", options
    )


def test_a_unit_on_every_node_is_local_sgd_bit_for_bit(seen):
    assert [own["local_sgd"] for own in seen] == [{"sgd": True, "adam": True}] * NODES


def far_and_near(fabric):
    """Between near nodes and distant ones: the largest difference of weights, bytes, and operations of a trace."""
    workload, weights, sent, posted = open_workload("toy", NORMALISED), [], [], []
    for fabric.far in (False, True):
        models, own, events = trained(fabric, workload, "ist", {**MOMENTUM, "coverage": 2}, parameters_of)
        weights.append([torch.frombuffer(bytearray(model or b"0000"), dtype=torch.float32) for model in models])
        sent.append(own)
        posted.append(sorted(event for event in events if event[0] == POST))
    fabric.far = False
    difference = max(float((near - far).abs().max()) for near, far in zip(*weights, strict=True))
    return difference, sent, posted[0] == posted[1] != []


def test_distant_nodes_exchange_the_same_subnets_at_once(seen):
    for own in seen:
        difference, (near, far), same_trace = own["far"]
        assert difference < 1e-6
        assert near <= far <= 2 * near  # all-reduces of small tensors go whole to all nodes
        assert same_trace


def warm_up(fabric):
    workload = open_workload("toy", NORMALISED)
    whole, _, _ = trained(fabric, workload, "local_sgd", ADAM, parameters_of)
    never, _, _ = trained(fabric, workload, "ist", {**ADAM, "warmup_rounds": 9}, parameters_of)
    once, _, _ = trained(fabric, workload, "ist", {**ADAM, "warmup_rounds": 1}, parameters_of)
    return {
        "never dealt": never == whole,
        "dealt after a round": [one == other for one, other in zip(once, whole, strict=True)],
        "first deal": {name: first_deal(fabric, own) for name, own in FIRST_DEALS.items()},
    }


def first_deal(fabric, options):
    """The sizes of a matrix before and after the first deal, and what the share took from the whole model."""
    workload, modules = open_workload("toy", NORMALISED), []
    loss = workload.loss
    workload.loss = lambda model, batch: (modules.append(model), loss(model, batch))[1]
    method = set_up(fabric, workload, "ist", {**options, "warmup_rounds": 1})
    train(fabric, workload, method, 0, LOCAL_STEPS - 1)
    whole = method.state_dict()  # not copies: these tensors train until the deal
    train(fabric, workload, method, LOCAL_STEPS - 1, LOCAL_STEPS)
    share, slots = method.state_dict(), method.options.slots if options.get("optimizer_state") != "reset" else ()
    model = blank_model(workload)
    layout, names = layout_of(model, workload.neuron_groups(model)), [name for name, _ in model.named_parameters()]
    partition, home = Deals(layout.groups, NODES, seed=0).partition(1), home_partition(layout.groups, NODES)

    def planes_of(state, name):
        own = state["optimizer"]["state"].get(str(names.index(name)))
        return [state["subnet"][name], *(own[slot] for slot in slots)]

    taken, trained_state = {}, False
    for cut in layout.cut:
        planes = planes_of(whole, cut.name)
        trained_state |= any(bool(plane.any()) for plane in planes[1:])
        index = subnet_index(cut, partition, fabric.rank)
        pairs = [*zip(planes_of(share, cut.name), (select(own, cut.axes, index) for own in planes), strict=True)]
        if cut.needs_home:
            first, shards = subnet_index(cut, home, fabric.rank)[:1], share["home"][cut.name].values()
            pairs += zip(shards, (select(own, cut.axes[:1], first) for own in planes), strict=True)
        taken[cut.name] = all(torch.equal(own, wanted) for own, wanted in pairs)
    return {
        "sizes": [state["subnet"]["linear2.weight"].numel() for state in (whole, share)],
        "taken": taken,
        "state": trained_state,
        "gradients": [parameter.grad is None for parameter in modules[-1].parameters()],
    }


def test_a_warm_up_is_local_sgd_until_the_first_deal(seen):
    own = seen[0]["warm-up"]
    assert own["never dealt"]
    assert own["dealt after a round"] == [True] * LOCAL_STEPS + [False] * (STEPS - LOCAL_STEPS)


def test_the_first_deal_takes_values_and_state_out_of_the_whole_model(seen):
    for own in seen:
        for name, deal in own["warm-up"]["first deal"].items():
            assert deal["sizes"][0] == 13 * 13
            assert deal["sizes"][1] in (4 * 4, 5 * 5)
            assert {"linear2.weight", "linear3.weight"} < deal["taken"].keys()
            assert all(deal["taken"].values()), (name, deal["taken"])
            assert deal["state"] == (name != "reset")
            assert all(deal["gradients"])  # their memory is free for the share


def against_reference(fabric):
    differences, in_blocks = {}, {}
    for name, (network, options) in AGAINST_REFERENCE.items():
        workload = open_workload("toy", network)
        method = set_up(fabric, workload, "ist", {"lr": 0.1, "local_steps": LOCAL_STEPS, **options}, seed=5)
        for first, last in pairwise((0, *STOPS)):
            train(fabric, workload, method, first, last, seed=5)
            model = assembled(fabric, method)
            if model is not None:
                wanted = reference_ist(
                    workload, method.options, nodes=NODES, local_steps=LOCAL_STEPS, steps=last, seed=5
                )
                differences[name] = max(differences.get(name, 0), largest_difference(model, wanted))
        in_blocks[name] = reads_in_blocks(fabric, method, workload, model)
    return differences, in_blocks


def test_partial_deals_are_their_definition_inside_rounds_and_at_their_ends(seen):
    differences, in_blocks = seen[0]["reference"]
    assert differences.keys() == AGAINST_REFERENCE.keys()
    assert max(differences.values()) < EXACT
    assert set(in_blocks.values()) == {True}


def late(fabric):
    """`deal=late` against a model without the other groups; the trained bytes of both."""
    names = "block2_2.hidden1,block3_2.hidden1,block4_2.hidden1"
    ends, sent = [], []
    for workload, deal in ((TinyImages("resnet18"), "late"), (LateImages("resnet18"), names)):
        before = fabric.traffic["training"].sent
        method = set_up(fabric, workload, "ist", {**MOMENTUM, "local_steps": 2, "deal": deal})
        train(fabric, workload, method, 0, 4)
        model = assembled(fabric, method)
        ends.append(model and weights_sha256(model))
        sent.append(fabric.traffic["training"].sent - before)
    method = set_up(fabric, LateImages("resnet18"), "ist", {"lr": 0.05, "local_steps": 2})
    train(fabric, LateImages("resnet18"), method, 0, 4)
    every = assembled(fabric, method)
    method = set_up(fabric, TinyImages("resnet18"), "ist", {"lr": 0.05, "local_steps": 2, "deal": "late"})
    train(fabric, TinyImages("resnet18"), method, 0, 4)
    model = assembled(fabric, method)
    return ends, sent, model and largest_difference(model, every)


def test_late_layers_are_dealt_as_if_the_others_had_no_groups(seen):
    ends, sent, difference = seen[0]["late"]
    assert ends[0] == ends[1]
    assert sent[0] == sent[1] > 0
    # Without momentum the means in float64 and in the network's own numbers are the same.
    assert difference < EXACT_DOUBLE


def mostly_whole(fabric, options):
    """Whether naming the only group is dealing all; and the bytes that this node sends in an average."""
    workload = one_found(NORMALISED)
    every = trained(fabric, workload, "ist", {**options, "deal": "all"})
    named = trained(fabric, workload, "ist", {**options, "deal": "hidden2"})
    _, sent, _ = trained(fabric, workload, "ist", {**options, "moving": 0})
    return every == named, sent / (STEPS // LOCAL_STEPS)


def test_all_of_few_groups_is_dealt_as_if_they_were_named(seen):
    model = one_found(NORMALISED).build_model()
    indexed = ("linear2.weight", "linear2.bias", "norm2.", "linear3.weight")
    values = sum(
        tensor.numel()
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point() and not name.startswith(indexed)
    )
    # The numbers of updates of the dealt parameters, in float64.
    counts = {"adam": 5}
    for own in seen:
        for name, (alike, sent) in own["mostly whole"].items():
            assert alike
            every = 4 * values + 8 * counts.get(name, 0)
            assert sent == pytest.approx(every * 2 * (NODES - 1) / NODES, abs=16)


def still(fabric):
    """A subnet's weights after each step of rate 0, the bytes sent, and the values that every node trains."""
    workload, weights = open_workload("toy", PLAIN), []
    before = fabric.traffic["training"].sent
    method = set_up(fabric, workload, "ist", {**MOMENTUM, "lr": 0.0, "weight_decay": 0.0, "moving": 0})
    for step in range(STEPS):
        train(fabric, workload, method, step, step + 1)
        weights.append(method.state_dict()["subnet"]["linear2.weight"].tolist())
    model = blank_model(workload)
    replicated = layout_of(model, workload.neuron_groups(model)).replicated
    shared = 2 * sum(model.get_parameter(name).numel() for name in replicated)  # with their momentum
    return weights, fabric.traffic["training"].sent - before, shared


def test_units_that_never_move_send_only_the_tensors_that_every_node_trains(seen):
    for weights, sent, shared in (own["still"] for own in seen):
        assert all(later == weights[0] for later in weights)
        rounds = STEPS // LOCAL_STEPS
        assert sent == pytest.approx(rounds * 8 * shared * 2 * (NODES - 1) / NODES, abs=64)


def resumed(fabric, name, options):
    """Whether a run that resumes at each of `STOPS` ends like the run without a stop."""
    workload = open_workload("toy", NORMALISED)
    whole, states = set_up(fabric, workload, name, options), {}
    for first, last in pairwise((0, *STOPS, STEPS)):
        train(fabric, workload, whole, first, last)
        states[last] = through_disk(whole.state_dict(), fabric.rank)
    wanted = ended(fabric, whole)
    ends = []
    for stop in STOPS:
        method = set_up(fabric, workload, name, options)
        method.load_state_dict(states[stop])
        train(fabric, workload, method, stop, STEPS)
        ends.append(ended(fabric, method) == wanted)
    return ends


def ended(fabric, method):
    model = assembled(fabric, method)
    return model and weights_sha256(model)


def test_runs_resume_inside_rounds_and_at_their_ends_bit_for_bit(seen):
    assert seen[0]["resumed"] == {name: [True] * len(STOPS) for name in RESUMED}


def node_closed_early(fabric):
    """By coverage, the assembled model inside a round, and after the round was closed there."""
    workload, ends = open_workload("toy", {"hidden": 60, "layers": 3}), {}
    for coverage in (2, 3):
        method = set_up(fabric, workload, "ist", {**MOMENTUM, "coverage": coverage})
        train(fabric, workload, method, 0, LOCAL_STEPS + 1)
        ends[coverage] = [ended(fabric, method)]
        method.close_round()
        ends[coverage].append(ended(fabric, method))
    return ends


def test_a_round_that_closes_early_changes_no_bit_of_the_assembled_model():
    for inside, closed in on_nodes(node_closed_early, 4)[0].values():
        assert inside == closed


def bytes_a_round(fabric, options):
    """Mean bytes that this node sent in a round."""
    workload = open_workload("toy", WIDE)
    method = set_up(fabric, workload, "ist", {**options, "local_steps": 1})
    before = fabric.traffic["training"].sent
    train(fabric, workload, method, 0, ROUNDS)
    return (fabric.traffic["training"].sent - before) / ROUNDS


def test_nodes_send_the_planned_bytes(seen):
    for name, options in COUNTED.items():
        request = RunRequest(
            workload="toy",
            method="ist",
            nodes=NODES,
            workload_options=WIDE,
            method_options={**options, "local_steps": 1},
        )
        planned = make_plan(request, load_profile("m5.2xlarge"), limits=False)
        counted = sum(own["bytes"][name] for own in seen) / NODES
        assert counted == pytest.approx(planned.sent, rel=0.03)
