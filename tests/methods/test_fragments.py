"""Fragments of layers, and the messages of their changes."""

import itertools

import pytest
import torch
from torch import nn

from istbench.base.errors import UserError
from istbench.cluster.trace import POST, SEND
from istbench.methods.background_mean import decode, encode
from istbench.methods.flat import flatten_in_place, floating_tensors
from istbench.methods.footprint import PlannedNode, StepCost
from istbench.methods.planned_node import CHUNK, balanced_runs, message_bytes, part_lengths
from istbench.methods.streaming_diloco import fragment_slices, layers_of
from istbench.node.registry import build_method, build_workload
from istbench.workloads.contract import blank_model


@pytest.mark.parametrize("sizes", [(1,), (5, 1, 1, 1), (1, 9, 1, 1, 4), (3, 3, 3, 3), (0, 0, 2)])
def test_no_other_cut_has_a_smaller_largest_run(sizes):
    for count in range(1, len(sizes) + 1):
        runs = balanced_runs(sizes, count)
        assert [number for run in runs for number in run] == list(range(len(sizes)))
        assert len(runs) == count
        assert all(len(run) for run in runs)
        cuts = itertools.combinations(range(1, len(sizes)), count - 1)
        least = min(
            max(sum(sizes[first:last]) for first, last in itertools.pairwise((0, *cut, len(sizes)))) for cut in cuts
        )
        assert max(sum(sizes[run.start : run.stop]) for run in runs) == least


def test_fragments_are_whole_layers_of_every_dtype():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).double(), nn.Linear(2, 2))
    assert [len(layer) for layer in layers_of(model)] == [2, 2, 2, 2]
    flats = flatten_in_place(floating_tensors(model))
    fragments = fragment_slices(model, 3)
    assert all(len(slices) == len(flats) == 2 for slices in fragments)
    for number, kind in enumerate((torch.float32, torch.float64)):
        bounds = [0, *(slices[number].stop for slices in fragments)]
        assert [slices[number].start for slices in fragments] == bounds[:-1]
        assert bounds[-1] == sum(own.numel() for own in model.parameters() if own.dtype == kind)
    sizes = [sum(where.stop - where.start for where in slices) for slices in fragments]
    assert sizes == [16, 8, 16]


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 5])
def test_messages_have_their_size_and_lose_what_they_say(length):
    vector = torch.randn(length, generator=torch.Generator().manual_seed(0))
    vector[: CHUNK // 2] = 0
    largest = vector.abs().max() if length else 0
    for send, error in (("float32", 0), ("bf16", 2**-8), ("int8", 0.5 / 127 + 1e-6)):
        message = encode(vector, send)
        assert message.nbytes == message_bytes(length, send)
        found = decode(message, length, send)
        assert found.dtype == torch.float32
        assert found.shape == vector.shape
        if length:
            assert float((found - vector).abs().max()) <= error * float(largest)
        # Rounded values are sent unchanged.
        assert torch.equal(decode(encode(found, send), length, send), found)


def test_a_chunk_keeps_its_own_scale_and_zeros_stay_zero():
    vector = torch.cat([torch.zeros(CHUNK), torch.full((CHUNK,), 1e-6), torch.full((CHUNK,), 1e3)])
    assert torch.allclose(decode(encode(vector, "int8"), len(vector), "int8"), vector, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("length", "nodes"), [(10, 3), (2, 4), (0, 2)])
def test_parts_are_those_of_torch(length, nodes):
    assert part_lengths(length, nodes) == [len(part) for part in torch.zeros(length).tensor_split(nodes)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"local_steps": 5}, "local_steps=5 must be a multiple of fragments=2; set local_steps=6"),
        ({"local_steps": 8, "fragments": 4, "delay": 3}, "delay=3 must be at most 2 .* set delay=2"),
        ({"average_optimizer": True, "inner_state": "reset"}, "leave one out"),
        ({"alpha": 1}, "alpha must be a number below 1"),
        ({"send": "int4"}, "send"),
    ],
)
def test_options_that_cannot_work_are_refused(options, says):
    with pytest.raises(UserError, match=says):
        build_method("streaming_diloco", options)


def test_more_fragments_than_layers_are_refused():
    workload = build_workload("toy", {})
    method = build_method("streaming_diloco", {"local_steps": 8, "fragments": 8, "delay": 0}, workload=workload)
    with pytest.raises(UserError, match="fragments=8 is more than the 3 layers .* set fragments=3 or less"):
        method.check(method.options, workload.build_model(), workload, 2)


@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize(("send", "size"), [("float32", 4), ("bf16", 2)])
def test_a_planned_round_sends_the_least_bytes(delay, send, size):
    workload, nodes = build_workload("toy", {}), 4
    options = {"local_steps": 6, "fragments": 3, "delay": delay, "send": send}
    method = build_method("streaming_diloco", options, workload=workload)
    model = blank_model(workload)
    footprint = method.footprint(model, workload, nodes, 16)
    cost = StepCost(peak=None, batch=0, flops=None, uses=(), ready=())
    sent = []
    for rank in range(nodes):
        node = PlannedNode(rank, nodes, cost, 1.0)
        next(footprint.rounds(node))
        events = node.builder.to_arrays()
        sent.append(events["bytes"][(events["code"] == POST) & (events["kind"] == SEND)].sum())
    assert events["seconds"].sum() == 6
    parameters = sum(own.numel() for own in model.parameters())
    assert sum(sent) == 2 * (nodes - 1) * size * parameters


@pytest.mark.parametrize("name", ["diloco", "streaming_diloco"])
def test_the_inner_optimizer_is_adamw_unless_workload_or_user_say_otherwise(name):
    def built(workload, **options):
        options = build_method(name, options, workload=build_workload(workload, {})).options
        return options.optimizer, options.lr, options.momentum, options.weight_decay

    assert built("cifar10") == ("adamw", 0.0004, 0.0, 0.0)  # its own rates are those of sgd
    assert built("cifar10", optimizer="sgd") == ("sgd", 0.1, 0.9, 5e-4)
    assert built("amazon670k")[:2] == ("adam", 0.001)
    assert built("text")[:2] == ("adamw", 0.001)
