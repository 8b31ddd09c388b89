"""The network for very many labels: sparse as dense, in blocks as at once, its gradients too."""

import pytest
import torch
from dense_points import dense
from torch import nn
from torch.nn import functional as F

from istbench.workloads.amazon670k import Amazon670k, Amazon670kOptions
from istbench.workloads.contract import blank_model
from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.extreme import ExtremeNetwork
from istbench.workloads.neuron_groups.groups import permute_units

FEATURES, HIDDEN, LABELS = 12, 6, 23


def sparse(rows, columns, *, ones=False):
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    indices = torch.tensor([index for row in rows for index in row], dtype=torch.int64)
    values = torch.tensor([value for row in rows for value in row.values()], dtype=torch.float32)
    return SparseBatch(offsets, indices, None if ones else values, columns)


POINTS = sparse([{0: 0.5, 7: -1.0}, {}, {3: 2.0}, {11: 1.0, 0: 0.25, 4: 1.5}], FEATURES)
TRUE = sparse([{22: 1, 0: 1, 5: 1}, {8: 1}, {}, {7: 1, 8: 1}], LABELS, ones=True)


def network(block):
    torch.manual_seed(3)
    model = ExtremeNetwork(FEATURES, HIDDEN, LABELS, block)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def plain_loss(model, points, labels):
    hidden = F.relu(dense(points) @ model.input.weight + model.input.bias)
    logs = F.log_softmax(hidden @ model.output.weight.t() + model.output.bias, dim=1)
    truth = dense(labels)
    return -(logs * truth / truth.sum(1, keepdim=True).clamp(min=1)).sum() / len(points)


@pytest.mark.parametrize("block", [1, 4, 8, LABELS, 1000])
def test_the_loss_in_blocks_is_the_dense_one_with_its_gradients(block):
    model = network(block)
    loss, expected = model(POINTS, TRUE), plain_loss(model, POINTS, TRUE)
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    found = torch.autograd.grad(3 * loss, parameters)
    wanted = torch.autograd.grad(3 * expected, parameters)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_are_those_of_differences():
    model = network(4).double()
    hidden = torch.randn(4, HIDDEN, dtype=torch.float64, requires_grad=True)
    inputs = (hidden, model.output.weight, model.output.bias)

    def loss(hidden, weight, bias):
        named = {"weight": weight, "bias": bias}
        return torch.func.functional_call(model.output, named, (hidden, TRUE))

    assert torch.autograd.gradcheck(loss, inputs)


def test_outputs_whole_and_in_blocks_are_alike():
    model = network(5)
    whole = model(POINTS)
    blocks = list(model.output.outputs(model.hidden(POINTS)))
    assert [first for first, _ in blocks] == [0, 5, 10, 15, 20]
    torch.testing.assert_close(torch.cat([block for _, block in blocks], 1), whole)
    assert whole.shape == (4, LABELS)


def test_half_precision_is_near():
    model = network(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(POINTS, TRUE)
    expected = plain_loss(model, POINTS, TRUE)
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.05)
    loss.backward()
    wanted = torch.autograd.grad(expected, model.output.weight)[0]
    assert model.output.weight.grad is not None
    torch.testing.assert_close(model.output.weight.grad, wanted, rtol=0.1, atol=0.05)


def test_a_batch_is_cut_and_compared_as_tensors_are():
    parts = POINTS.chunk(3)
    assert [len(part) for part in parts] == [2, 2]
    assert torch.cat([dense(part) for part in parts]).equal(dense(POINTS))
    assert POINTS.equal(POINTS.to("cpu"))
    assert not POINTS.equal(sparse([{0: 0.5}], FEATURES))
    assert not POINTS.equal(SparseBatch(POINTS.offsets, POINTS.indices, None, FEATURES))
    assert TRUE.equal(TRUE.to(torch.device("cpu"), non_blocking=True))


def test_permuting_hidden_units_leaves_the_function_unchanged():
    workload = Amazon670k(Amazon670kOptions(hidden=HIDDEN))
    model = network(4)
    before, weights = model(POINTS), model.input.weight.clone()
    (group,) = workload.neuron_groups(model)
    permute_units(model, group, torch.arange(HIDDEN).roll(1))
    assert not torch.equal(model.input.weight, weights)
    torch.testing.assert_close(model(POINTS), before)


def test_rows_start_as_in_the_full_model():
    workload = Amazon670k(Amazon670kOptions(hidden=HIDDEN, features=300, labels=200))
    model = blank_model(workload)
    for name, parameter in model.named_parameters():
        whole = workload.initial_rows(model, name, None, 1)
        assert whole.shape == parameter.shape
        rows = torch.tensor([5, 2]) if parameter.dim() == 2 else None
        assert torch.equal(workload.initial_rows(model, name, rows, 1), whole if rows is None else whole[rows])
    assert not workload.initial_rows(model, "output.bias", None, 1).any()
