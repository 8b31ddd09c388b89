"""The number of samples in a batch of any structure, and copies of such a batch on another device."""

from collections import UserDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, zeros

from istbench.base.errors import UserError
from istbench.node.registry import build_workload
from istbench.workloads.task_batches import Parts, guessed_samples


class Pair(NamedTuple):
    points: Tensor
    labels: Tensor


class Encoding(UserDict):
    """A mapping with attributes, as tokenizers return."""

    def __getattr__(self, name):
        return self.data[name]


@dataclass
class Graphs:
    nodes: Tensor
    edges: Tensor


BOXES = {"boxes": zeros(1, 4), "labels": zeros(1)}
BATCHES = [
    (zeros(8, 3), 8),
    ([zeros(8, 3), zeros(8)], 8),
    ([[zeros(8, 3), zeros(8, 2)], zeros(8)], 8),
    (((zeros(8, 3), zeros(8, 2)), zeros(8)), 8),
    ({"x": zeros(8, 3), "y": zeros(8)}, 8),
    (([zeros(3, 64, 64)] * 2, [BOXES] * 2), 2),
    ({"images": [zeros(3, 64, 64)] * 5, "targets": [BOXES] * 5}, 5),
    (([zeros(3, 8, 8)] * 2,), 2),
    ([zeros(4), zeros(())], 4),
    (Pair(zeros(6, 2), zeros(6)), 6),
    (Encoding(input_ids=zeros(7, 9), attention_mask=zeros(7, 9)), 7),
    (Graphs(zeros(11, 3), zeros(2, 40)), 11),
    *[
        ((way(torch.eye(4)), zeros(4, 2)), 4)
        for way in (
            Tensor.to_sparse,
            Tensor.to_sparse_csr,
            Tensor.to_sparse_csc,
            lambda eye: eye.to_sparse_bsr((2, 2)),
            lambda eye: eye.to_sparse_bsc((2, 2)),
        )
    ],
    (MappingProxyType({"x": zeros(8, 3), "y": [zeros(8)]}), 8),
]


@pytest.mark.parametrize(("batch", "count"), BATCHES, ids=range(len(BATCHES)))
def test_samples_are_the_elements_of_lists_or_the_rows_of_tensors(batch, count):
    assert guessed_samples(batch) == count


@pytest.mark.parametrize(("batch", "count"), BATCHES, ids=range(len(BATCHES)))
def test_a_moved_batch_has_the_same_structure_and_leaves_the_original_alone(batch, count):
    parts = Parts(batch, count)
    before = len(parts.tensors)
    moved = parts.to(torch.float64)
    assert type(moved.parts) is type(batch)
    assert [tensor.dtype for tensor in moved.tensors] == [torch.float64] * before
    assert all(tensor.dtype == torch.float32 for tensor in parts.tensors)
    assert moved.equal(Parts(batch, count).to(torch.float64))
    assert len(moved) == count


FILE = """
import torch
from torch import nn

SAMPLES

def model():
    return nn.Linear(3, 1)

def data(train):
    return [torch.rand(6, 3) for _ in range(4)]

def loss(model, batch):
    return model(batch).square().mean()
"""


@pytest.mark.parametrize(
    ("text", "count"), [("", 6), ("samples = 2", 2), ("def samples(batch):\n    return len(batch) // 3", 2)]
)
def test_a_file_may_say_the_samples_of_its_batches(tmp_path, text, count):
    (tmp_path / "own.py").write_text(FILE.replace("SAMPLES", text))
    workload = build_workload(str(tmp_path / "own.py"), {})
    source = workload.prepare(None, tmp_path, lambda *_: None)
    assert (workload.batch_size, source.train) == (count, 4 * count)
    assert ("batches of 6 samples" in source.note) == (not text)


def test_samples_that_are_no_count_are_refused(tmp_path):
    (tmp_path / "own.py").write_text(FILE.replace("SAMPLES", "def samples(batch):\n    return 'many'"))
    with pytest.raises(UserError, match=r"own.py: samples\(batch\) must be a whole number"):
        build_workload(str(tmp_path / "own.py"), {}).prepare(None, tmp_path, lambda *_: None)
