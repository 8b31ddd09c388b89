"""Softmax over active sets: with all rows active it is the amazon670k workload's, whole or split over nodes."""

import copy

import numpy as np
import pytest
import torch
from slide_problems import drawn_rows, labels_of, normal, sets_of
from torch.nn import functional as F

from istbench.methods.slide.active import active_sets, inverted, owned
from istbench.methods.slide.hashing import Tables
from istbench.methods.slide.kernels import RowOptimizer, Rule, backward, row_outputs
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.softmax import combined, normaliser, output_gradient
from istbench.methods.slide.threads import Threads
from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.extreme import LabelLayer

ONE = Threads(1)
SIZE, WIDTH = 57, 6
TRUE = [[3, 56, 20], [], [0], [1, 3], [55], [], [40, 41, 42, 43]]
LABELLED = np.array([bool(rows) for rows in TRUE])
HIDDEN = [np.maximum(normal(len(TRUE), WIDTH, seed=step), 0) for step in range(4)]


def own_labels(first, last):
    """The labels of rows from `first` to `last`, as the node that has them sees them."""
    ends = np.cumsum([len(rows) for rows in TRUE])
    return owned(ends, np.array([row for rows in TRUE for row in rows]), first, last)


class Node:
    """Rows from `first` to `last` of the layer, all of them active, by a table with one bucket."""

    def __init__(self, layer, first, last, rule, threads):
        self.weight = layer.weight.detach()[first:last].numpy().copy()
        self.bias = layer.bias.detach()[first:last].numpy().copy()
        self.optimizer = RowOptimizer(rule, self.weight)
        family = SimHash(WIDTH, 0, 1, seed=0)
        tables = Tables.build(family, self.weight, threads)
        self.labels = own_labels(first, last)
        codes = family.codes(HIDDEN[0], threads)
        sets = active_sets(self.labels, last - first, threads, tables=tables, codes=codes)
        self.pairs = inverted(sets, self.labels, last - first)
        self.threads = threads

    def forward(self, hidden):
        self.outputs = row_outputs(self.weight, self.bias, hidden, self.pairs, self.threads)
        return normaliser(self.outputs, self.pairs, self.labels, self.threads)

    def backward(self, hidden, logs):
        slopes = output_gradient(self.outputs, self.pairs, self.labels, logs, LABELLED, self.threads)
        return backward(self.weight, self.bias, hidden, slopes, self.pairs, self.optimizer, 0.05, self.threads)


def layer():
    torch.manual_seed(1)
    made = LabelLayer(WIDTH, SIZE, block=20)
    torch.nn.init.normal_(made.weight)
    torch.nn.init.normal_(made.bias)
    return made


def sparse_labels():
    labels = own_labels(0, SIZE)
    offsets = torch.from_numpy(np.concatenate([[0], labels.ends]))
    return SparseBatch(offsets, torch.from_numpy(labels.rows).long(), None, SIZE)


def dense_steps(model, rule):
    """The loss and the gradient of the hidden vectors of every step, of the workload's own layer."""
    build = torch.optim.SGD if rule == Rule.SGD else torch.optim.Adam
    optimizer, found = build(model.parameters(), lr=0.05), []
    for array in HIDDEN:
        hidden = torch.from_numpy(array).requires_grad_()
        optimizer.zero_grad()
        loss = model(hidden, sparse_labels())
        loss.backward()
        optimizer.step()
        found.append((loss.item(), hidden.grad))
    return found


@pytest.mark.parametrize("rule", [Rule.SGD, Rule.LAZY_ADAM, Rule.ADAM])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_all_rows_active_trains_as_the_dense_layer_does(nodes, rule):
    first = layer()
    dense = copy.deepcopy(first)
    wanted = dense_steps(dense, rule)
    edges = [SIZE * node // nodes for node in range(nodes + 1)]
    parts = [Node(first, edges[node], edges[node + 1], rule, ONE) for node in range(nodes)]
    for hidden, (loss, of_hidden) in zip(HIDDEN, wanted, strict=True):
        whole = combined([part.forward(hidden) for part in parts])
        assert whole.loss(LABELLED) == pytest.approx(loss, rel=1e-5)
        found = sum(part.backward(hidden, whole.logs) for part in parts)
        np.testing.assert_allclose(found, of_hidden, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([part.weight for part in parts]), dense.weight.detach(), atol=2e-5)
    np.testing.assert_allclose(np.concatenate([part.bias for part in parts]), dense.bias.detach(), atol=2e-5)


def test_the_gradient_over_active_sets_is_autograds():
    rows = [true + [row for row in own if row not in true] for true, own in
            zip(TRUE, drawn_rows(SIZE, len(TRUE), 20, seed=1), strict=True)]  # fmt: skip
    labels = own_labels(0, SIZE)
    pairs = inverted(sets_of(rows), labels, SIZE)
    outputs = normal(len(pairs), seed=5) * 3
    tensor = torch.from_numpy(outputs).double().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for sample, true in enumerate(TRUE):
        own = np.flatnonzero(pairs.samples == sample)
        columns = np.repeat(pairs.rows, np.diff(pairs.starts))[own].tolist()
        logs = F.log_softmax(tensor[torch.from_numpy(own)], dim=0)
        loss = loss - sum(logs[columns.index(row)] / len(true) for row in true) / len(TRUE)
    (wanted,) = torch.autograd.grad(loss, tensor)
    whole = normaliser(outputs, pairs, labels, ONE)
    assert whole.loss(LABELLED) == pytest.approx(loss.item(), rel=1e-6)
    found = output_gradient(outputs, pairs, labels, whole.logs, LABELLED, ONE)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-7)


def test_one_and_two_threads_give_the_same_bits():
    found = []
    for threads in (Threads(1), Threads(2)):
        part = Node(layer(), 0, SIZE, Rule.SGD, threads)
        whole = part.forward(HIDDEN[0])
        found.append((whole.values, part.backward(HIDDEN[0], whole.logs), part.weight))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_node_without_active_rows_for_a_sample_adds_nothing():
    labels = labels_of([[], []])
    pairs = inverted(sets_of([[], [4]]), labels, SIZE)
    none = normaliser(np.array([2.5], np.float32), pairs, labels, ONE)
    assert none.values.tolist() == [[-np.inf, 0, 0], [2.5, 1, 0]]
    assert none.logs.tolist() == [-np.inf, 2.5]
    assert combined([none, none]).logs.tolist() == [-np.inf, pytest.approx(2.5 + np.log(2))]


def test_large_outputs_do_not_overflow():
    labels = labels_of([[0]])
    pairs = inverted(sets_of([[0, 1]]), labels, SIZE)
    outputs = np.array([900, 1000], np.float32)
    whole = normaliser(outputs, pairs, labels, ONE)
    assert whole.loss(np.array([True])) == pytest.approx(100)
    found = output_gradient(outputs, pairs, labels, whole.logs, np.array([True]), ONE)
    np.testing.assert_allclose(found, [-1, 1], atol=1e-6)
