"""Blocks of a full tensor put together from what nodes hold of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from istbench.methods.assembling import DimSlice, piece_of
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.layout import Axis, select, write
from istbench.workloads.neuron_groups.partition import home_partition, partition_units

ROWS, COLUMNS, DEPTH = 7, 5, 6
CUTS = {
    "rows": (Axis(0, "rows", 1),),
    "columns": (Axis(1, "columns", 1),),
    "runs of columns": (Axis(2, "pairs", 2),),
    "columns of both halves": (Axis(2, "pairs", 1, 2),),
    "both": (Axis(0, "rows", 1), Axis(1, "columns", 1)),
}
GROUPS = [NeuronGroup("rows", ROWS, ()), NeuronGroup("columns", COLUMNS, ()), NeuronGroup("pairs", DEPTH // 2, ())]
FULL = torch.arange(ROWS * COLUMNS * DEPTH, dtype=torch.float32).view(ROWS, COLUMNS, DEPTH)


@pytest.mark.parametrize("cut", CUTS)
@given(data=st.data())
def test_the_pieces_of_all_nodes_are_the_block(cut, data):
    axes = CUTS[cut]
    nodes = data.draw(st.integers(1, 3))
    dim = data.draw(st.integers(0, 2))
    first = data.draw(st.integers(0, FULL.shape[dim] - 1))
    span = DimSlice(dim, first, data.draw(st.integers(first + 1, FULL.shape[dim])))
    dealt = partition_units(GROUPS, nodes, seed=data.draw(st.integers(0, 99)), round_index=0)
    block = torch.full(span.shape(FULL.shape), -1.0)
    for partition, held in [(home_partition(GROUPS, nodes), axes[:1]), (dealt, axes)]:
        for node in range(nodes):
            index = [axis.index(partition[axis.group].units[node], DEPTH // 2) for axis in held]
            own = select(FULL, held, index)
            piece = piece_of(span, held, index)
            write(block, piece.axes, piece.index, piece.held.of(own))
    assert torch.equal(block, span.of(FULL))
