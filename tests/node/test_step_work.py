"""What a step computes, counted."""

import pytest
import torch
from torch import nn

from istbench.node.step_work import USUAL_SHAPE, OperationCounter


def counted(step):
    with OperationCounter() as counter:
        step()
    return counter.counted()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_products_count_by_operations_and_all_else_by_bytes(device):
    left, right = torch.ones(4, 8, device=device), torch.ones(8, 2, device=device)
    found = counted(lambda: torch.relu(left @ right))
    assert (found.work.operations, found.shapes) == (2 * 4 * 8 * 2, ((4, 8, 2),))
    assert found.work.bytes == 2 * 4 * (4 * 2)


def test_a_convolution_stands_for_a_usual_product():
    images, filters = torch.ones(2, 3, 8, 8), torch.ones(16, 3, 3, 3)
    found = counted(lambda: nn.functional.conv2d(images, filters, padding=1))
    assert found.shapes == (USUAL_SHAPE,)
    assert found.work.operations == 2 * 2 * 64 * 27 * 16


def test_the_backward_pass_counts():
    layer, inputs = nn.Linear(8, 2, bias=False), torch.ones(4, 8, requires_grad=True)
    assert counted(lambda: layer(inputs).sum().backward()).work.operations == 3 * 2 * 4 * 8 * 2


def test_views_and_memory_without_values_move_nothing():
    values = torch.ones(4, 8)
    assert counted(lambda: (values.t(), values[1:], values.expand(3, 4, 8), torch.empty(9))).work.bytes == 0


def test_a_table_counts_by_the_rows_that_are_read():
    table, numbers = torch.ones(1000, 16), torch.tensor([3, 5])
    found = counted(lambda: torch.index_select(table, 0, numbers))
    assert found.work.bytes == 2 * 8 + 2 * 2 * 16 * 4
    bags = counted(lambda: nn.functional.embedding_bag(numbers, table, torch.tensor([0]), mode="sum"))
    assert bags.work.bytes < 1000


def test_a_sparse_gradient_counts_by_its_values():
    table = nn.Embedding(100_000, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step():
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    assert counted(step).work.bytes < 10_000
