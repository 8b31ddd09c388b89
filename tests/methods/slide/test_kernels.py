"""Kernels beside torch's autograd and optimizers, over active sets drawn at random."""

import numpy as np
import pytest
import torch
from slide_problems import drawn_rows, labels_of, normal, sets_of

from istbench.methods.slide.active import inverted
from istbench.methods.slide.kernels import RowOptimizer, Rule, backward, row_outputs
from istbench.methods.slide.threads import Threads

ONE = Threads(1)
SIZE, WIDTH, SAMPLES = 90, 13, 11
ROWS = drawn_rows(SIZE, SAMPLES, 25, seed=2)
PAIRS = inverted(sets_of(ROWS), labels_of([[] for _ in ROWS]), SIZE)
OF_PAIRS = np.repeat(PAIRS.rows, np.diff(PAIRS.starts)).astype(np.int64)
SLOPES = normal(len(PAIRS), seed=3)
NO_PAIRS = inverted(sets_of([[], []]), labels_of([[], []]), SIZE)


def problem():
    return normal(SIZE, WIDTH), normal(SIZE, seed=1), normal(SAMPLES, WIDTH, seed=4)


def dense_outputs(weight, bias, hidden):
    """The outputs of all pairs, in double precision."""
    samples, rows = torch.from_numpy(PAIRS.samples).long(), torch.from_numpy(OF_PAIRS)
    return (hidden @ weight.T + bias)[samples, rows]


def gradients():
    """Those of weight, bias and hidden vectors, by torch, where the pairs' are `SLOPES`."""
    tensors = [torch.from_numpy(array).double().requires_grad_() for array in problem()]
    dense_outputs(*tensors).backward(torch.from_numpy(SLOPES).double())
    return [tensor.grad for tensor in tensors]


def test_some_rows_are_used_by_none_and_some_by_many():
    uses = np.diff(PAIRS.starts)
    assert len(uses) < SIZE
    assert uses.max() > 3
    assert sum(not own for own in ROWS) == 1


def test_outputs_are_the_products_of_the_pairs():
    weight, bias, hidden = problem()
    wanted = dense_outputs(*(torch.from_numpy(array).double() for array in problem()))
    np.testing.assert_allclose(row_outputs(weight, bias, hidden, PAIRS, ONE), wanted, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_hidden_vectors_is_that_of_the_old_weights():
    wanted = gradients()[2]
    for rule in Rule:
        weight, bias, hidden = problem()
        found = backward(weight, bias, hidden, SLOPES, PAIRS, RowOptimizer(rule, weight), 0.1, ONE)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert not np.array_equal(weight, problem()[0])


def test_a_step_of_sgd_is_the_gradient_of_rows_and_leaves_the_others():
    of_weight, of_bias, _ = gradients()
    weight, bias, hidden = problem()
    backward(weight, bias, hidden, SLOPES, PAIRS, RowOptimizer(Rule.SGD, weight), 0.5, ONE)
    old_weight, old_bias, _ = problem()
    np.testing.assert_allclose((old_weight - weight) / 0.5, of_weight, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose((old_bias - bias) / 0.5, of_bias, rtol=1e-5, atol=2e-6)
    idle = np.setdiff1d(np.arange(SIZE), PAIRS.rows)
    assert len(idle) > 3
    np.testing.assert_array_equal(weight[idle], old_weight[idle])


def by_torch(rule, weight, bias, steps):
    """Weight and bias after `steps` of torch's own optimizer."""
    tensors = [torch.from_numpy(array.copy()).requires_grad_() for array in (weight, bias)]
    build = torch.optim.Adam if rule == Rule.ADAM else torch.optim.SparseAdam
    optimizer = build(tensors, lr=0.01)
    for hidden, pairs in steps:
        rows = torch.from_numpy(np.repeat(pairs.rows, np.diff(pairs.starts)).astype(np.int64))
        slopes = torch.from_numpy(SLOPES[: len(pairs)])
        of_weight = slopes[:, None] * torch.from_numpy(hidden)[torch.from_numpy(pairs.samples).long()]
        for tensor, values in zip(tensors, (of_weight, slopes), strict=True):
            sparse = torch.sparse_coo_tensor(rows[None], values, tensor.shape)
            tensor.grad = sparse.to_dense() if rule == Rule.ADAM else sparse.coalesce()
        optimizer.step()
    return [tensor.detach() for tensor in tensors]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("rule", [Rule.ADAM, Rule.LAZY_ADAM])
def test_steps_of_adam_are_those_of_torch(rule):
    weight, bias, _ = problem()
    fewer = inverted(sets_of(drawn_rows(SIZE, SAMPLES, 4, seed=8)), labels_of([[] for _ in ROWS]), SIZE)
    steps = [(normal(SAMPLES, WIDTH, seed=20), PAIRS), (normal(SAMPLES, WIDTH, seed=21), fewer)]
    steps += [(normal(2, WIDTH), NO_PAIRS), (normal(SAMPLES, WIDTH, seed=22), fewer)]
    wanted = by_torch(rule, weight, bias, steps)
    optimizer = RowOptimizer(rule, weight)
    for hidden, pairs in steps:
        backward(weight, bias, hidden, SLOPES[: len(pairs)], pairs, optimizer, 0.01, ONE)
    np.testing.assert_allclose(weight, wanted[0], atol=1e-4)  # a hundredth of a step, where gradients cancel
    np.testing.assert_allclose(bias, wanted[1], atol=1e-4)
    assert optimizer.steps == len(steps)


@pytest.mark.parametrize("rule", list(Rule))
def test_one_and_two_threads_give_the_same_bits(rule):
    found = []
    for threads in (Threads(1), Threads(2)):
        weight, bias, hidden = problem()
        optimizer = RowOptimizer(rule, weight)
        for _ in range(2):
            outputs = row_outputs(weight, bias, hidden, PAIRS, threads)
            of_hidden = backward(weight, bias, hidden, SLOPES, PAIRS, optimizer, 0.1, threads)
        found.append((outputs, of_hidden, weight, bias, optimizer.moments, optimizer.bias_moments))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
