"""A model with a wide softmax, cut over the nodes: each keeps its own hidden units and its own outputs."""

import copy
import itertools
import math

import torch
from torch import Tensor, nn

from istbench.errors import UserError
from istbench.fabric import Fabric
from istbench.workloads.base import Workload
from istbench.workloads.wide_softmax import HAVE_ONE, WideSoftmax

_VALUES_AT_ONCE = 2**24


def even_cut(size: int, parts: int) -> list[range]:
    """`range(size)` in runs of sizes that differ by at most one."""
    edges = [size * part // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in itertools.pairwise(edges)]


def wide_softmax(method: str, model: nn.Module, workload: Workload, world_size: int) -> WideSoftmax:
    """The wide softmax of `model`, with something for each of `world_size` nodes.

    Raises:
        UserError: where there is none, or too little.
    """
    softmax = workload.wide_softmax(model)
    if softmax is None:
        raise UserError(
            f"{method} splits a wide softmax over the nodes, and workload {workload.name!r} has none; use "
            f"{' or '.join(HAVE_ONE)}"
        )
    for group, what in ((softmax.outputs, "an output"), (softmax.units, "a hidden unit")):
        if group.size < world_size:
            raise UserError(
                f"{method} needs {what} a node: {group.name!r} are {group.size} for {world_size} nodes; use fewer "
                "nodes or a wider model"
            )
    return softmax


def largest_part(softmax: WideSoftmax, world_size: int) -> nn.Module:
    """The part of the node that has most, on the meta device."""
    units, outputs = (-(-group.size // world_size) for group in (softmax.units, softmax.outputs))
    with torch.device("meta"):
        return softmax.part(units, range(outputs))


class CutModel:
    """One node's part of a model (meta device), with its initial values of `seed`, and the way back to all of it.

    Attributes:
        softmax: how it is cut. part: this node's, on its device.
        units, outputs: the hidden units and the outputs of every node.
    """

    def __init__(
        self,
        model: nn.Module,
        softmax: WideSoftmax,
        workload: Workload,
        fabric: Fabric,
        seed: int,
        *,
        sparse_gradients: bool = False,
    ) -> None:
        self.softmax = softmax
        self.units = even_cut(softmax.units.size, fabric.world_size)
        self.outputs = even_cut(softmax.outputs.size, fabric.world_size)
        self._full, self._fabric = model, fabric
        self._places = {
            name: (self.units if group == softmax.units else self.outputs, dim)
            for name, (group, dim) in softmax.cuts().items()
        }
        with torch.device("meta"):
            own = len(self.units[fabric.rank]), self.outputs[fabric.rank]
            part = softmax.part(*own, sparse_gradients=sparse_gradients)
        self.part = part.to_empty(device=fabric.device)
        with torch.no_grad():
            for name, parameter in self.part.named_parameters():
                self._fill(name, parameter, workload, seed)

    def _fill(self, name: str, parameter: Tensor, workload: Workload, seed: int) -> None:
        """Give `parameter` its initial values, made for some rows at a time."""
        cut, dim = self._places[name]
        own, shape = cut[self._fabric.rank], self._full.get_parameter(name).shape
        rows = torch.arange(shape[0]) if dim else torch.arange(own.start, own.stop)
        place = 0
        for some in rows.split(max(1, _VALUES_AT_ONCE // math.prod(shape[1:]))):
            values = workload.initial_rows(self._full, name, some, seed)
            parameter[place : place + len(some)] = values.narrow(dim, own.start, len(own)) if dim else values
            place += len(some)

    @torch.no_grad()
    def assemble(self) -> nn.Module | None:
        """The full model on rank 0, None elsewhere. Called on every rank."""
        lead = self._fabric.rank == 0
        full = copy.deepcopy(self._full).to_empty(device=self._fabric.device) if lead else None
        for name, parameter in self._full.named_parameters():
            self._bring(name, 0, 0, len(parameter), None if full is None else full.get_parameter(name))
        return full

    @torch.no_grad()
    def block(self, name: str, dim: int, first: int, last: int) -> Tensor | None:
        """Entries `first` to `last` along `dim` of parameter `name`, on rank 0; for `Method.blocks`."""
        shape = list(self._full.get_parameter(name).shape)
        shape[dim] = last - first
        block = self.part.get_parameter(name).new_empty(shape) if self._fabric.rank == 0 else None
        self._bring(name, dim, first, last, block)
        return block

    def _bring(self, name: str, dim: int, first: int, last: int, block: Tensor | None) -> None:
        """Fill `block`, on rank 0, with those entries: a node's at a time."""
        cut, across = self._places[name]
        mine, own = self.part.get_parameter(name), cut[self._fabric.rank]
        shape = list(self._full.get_parameter(name).shape)
        start, shape[dim] = (first, last - first) if dim == across else (0, last - first)
        within = [_overlap(run, range(first, last)) if dim == across else run for run in cut]
        held = mine if dim == across else mine.narrow(dim, first, last - first)
        kept = within[self._fabric.rank]
        held = held.narrow(across, max(0, kept.start - own.start), len(kept))
        sizes = [math.prod(shape) // shape[across] * len(run) for run in within]
        for node, values in self._fabric.gather_to_zero(held.contiguous().view(-1), sizes, f"assembling {name}"):
            if block is not None and len(values):
                target = block.narrow(across, within[node].start - start, len(within[node]))
                target.copy_(values.view(target.shape))


def _overlap(one: range, other: range) -> range:
    """What both have; empty, at the start of `one`, where that is nothing."""
    first, last = max(one.start, other.start), min(one.stop, other.stop)
    return range(first, last) if first < last else one[:0]
