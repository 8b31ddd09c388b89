"""What a method plans to exchange is what it exchanges. Functions named `node_*` run on every node."""

from pathlib import Path

import pytest

from istbench.cluster.trace import POST
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.data_parallel import DataParallel
from istbench.methods.footprint import PlannedNode
from istbench.node.registry import build_method, build_workload
from istbench.plan.step import step_cost
from istbench.studies.conformance.training import set_up, train
from istbench.workloads.contract import blank_model
from istbench.workloads.toy import Toy, ToyOptions

pytestmark = pytest.mark.processes

WIDE = {"hidden": 600, "layers": 3}  # two of its matrices are over a mebibyte
MIB = 2**20
CASES = {
    "ddp": ("ddp", {}),
    "ddp, buckets of another size": ("ddp", {"bucket_mb": 24.0}),
    "ddp, small buckets": ("ddp", {"bucket_mb": 0.5}),
    "ddp, accumulated": ("ddp", {"accumulate": 2}),
    "ddp, bf16": ("ddp", {"compress": "bf16"}),
    "ddp, powersgd": ("ddp", {"compress": "powersgd", "rank": 2, "bucket_mb": 0.5}),
    "local_sgd": ("local_sgd", {"local_steps": 1, "optimizer": "adam", "average_optimizer": True}),
    "diloco": ("diloco", {"local_steps": 1}),
    "streaming_diloco": ("streaming_diloco", {"local_steps": 1, "fragments": 1, "delay": 0, "send": "int8"}),
    "sparseloco": ("sparseloco", {"local_steps": 1, "chunk": 100, "top": 3}),
    "noloco": ("noloco", {"local_steps": 1}),
    "ist, each unit on every node": ("ist", {"local_steps": 1, "coverage": 2, "momentum": 0.9}),
    "ist, one layer that never moves": ("ist", {"local_steps": 1, "deal": ("hidden2",), "moving": 0.0}),
    "streaming_ist, no unit moves": ("streaming_ist", {"local_steps": 4, "moving": 0.0}),
    "ist, few groups are found": ("ist", {"local_steps": 1, "optimizer": "adam", "moving": 0.0}),
}
# Each unit stays with its owners, so the sizes of all messages are known.
STILL = {
    f"{owners} of 4 nodes": ("ist", {"local_steps": 1, "momentum": 0.9, "coverage": owners, "moving": 0.0})
    for owners in (2, 3)
}


class OneFound(Toy):
    """The second of three hidden layers alone has a group."""

    def neuron_groups(self, model):
        return [group for group in super().neuron_groups(model) if group.name == "hidden2"]


def workload_of(case):
    """The workload of a case, with its data open."""
    workload = (OneFound if "found" in case else Toy)(ToyOptions(**WIDE))
    workload.open(workload.prepare(None, Path(), lambda *_: None))
    return workload


def node_posted(fabric, cases):
    """Bytes of each operation of a round, by case."""
    seen = {}
    for name, (method, options) in cases.items():
        workload = workload_of(name)
        recorder = fabric.recorder = Recorder(fabric.device)
        built = set_up(fabric, workload, method, options)
        for step in range(2 * built.round_steps):  # from the end of the first round on it is recorded
            train(fabric, workload, built, step, step + 1)
            recorder.mark("step")
        events = recorder.events()
        seen[name] = events["bytes"][events["code"] == POST].tolist()
    return seen


@pytest.fixture(scope="module")
def posted():
    return on_nodes(node_posted, 2, CASES)[0]


def planned(name, method, options, nodes):
    """Bytes of each operation of node 0 in a planned round."""
    workload = workload_of(name)
    model = blank_model(workload)
    footprint = build_method(method, options, workload=workload).footprint(model, workload, nodes, 16)
    cost = step_cost(footprint.model, workload, 16, copied=footprint.gradients_copied)
    node = PlannedNode(0, nodes, cost, 1.0)
    next(footprint.rounds(node))
    events = node.builder.to_arrays()
    return events["bytes"][events["code"] == POST].tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_round_is_exchanged_as_planned(posted, name):
    assert posted[name] == planned(name, *CASES[name], 2)


def test_several_owners_of_a_unit_meet_as_planned_and_send_to_no_other():
    seen = on_nodes(node_posted, 4, STILL)[0]
    for name, case in STILL.items():
        assert seen[name] == planned(name, *case, 4)
    # A receive and a send to the lead, and from it; then the average.
    assert [len(sizes) for sizes in seen.values()] == [2 * (1 + 1) + 1, 2 * (2 + 2) + 1]


def test_the_first_bucket_of_torchs_defaults_is_small(posted):
    first, rest = posted["ddp"]
    assert MIB <= first < 2 * MIB
    assert posted["ddp, buckets of another size"] == [first + rest]


def test_the_state_of_an_optimizer_is_averaged_at_once(posted):
    (weights, state), parameters = posted["local_sgd"], len([*blank_model(workload_of("local_sgd")).parameters()])
    assert state == 2 * weights + 4 * parameters  # the number of updates of each


def test_compression_sends_half_or_the_factors(posted):
    whole = sum(posted["ddp"])
    assert sum(posted["ddp, bf16"]) == whole / 2
    assert posted["ddp, accumulated"] == posted["ddp"]
    factors = 4 * 2 * (2 * 600 + 2 * 600 + (600 + 8) + 0)
    biases_and_last = whole - 4 * (2 * 600 * 600 + 600 * 8)
    assert sum(posted["ddp, powersgd"]) == factors + biases_and_last


def test_a_plan_counts_the_memory_of_compression_and_says_what_it_leaves_out():
    workload = build_workload("toy", WIDE)
    model = blank_model(workload)

    def planned(method, options):
        return build_method(method, options, workload=workload).footprint(model, workload, 2, 16)

    assert (planned("ddp", {}).buffers, planned("ddp", {}).notes) == (0, ())
    assert planned("ddp", {"compress": "fp16"}).buffers == sum(own.numel() for own in model.parameters()) * 2
    low = planned("ddp", {"compress": "powersgd", "rank": 2, "start_compress": 50})
    sent = DataParallel.Options(compress="powersgd", rank=2).messages(model.parameters())
    errors = 4 * (2 * 600 * 600 + 600 * 8)
    assert low.buffers == errors + sent.plain + sent.left + sent.right
    assert "the first 50 local steps" in low.notes[1]
    assert "in the first 3 rounds" in planned("local_sgd", {"ddp_rounds": 3}).notes[0]
