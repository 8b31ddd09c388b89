"""The groups of parameters that `fsdp` gathers at once, their sizes, and their transfers in a planned step."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from istbench.cluster.collective import Backend
from istbench.fabric.all_reduce import Exchanging
from istbench.fabric.group import Group, Groups
from istbench.methods.footprint import PlannedNode, tensor_bytes, trained
from istbench.methods.planned_node import ShardedStep

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def gathered_modules(model: nn.Module, least: int) -> list[nn.Module]:
    """The modules whose parameters form a group each, in the order of `model`.

    Candidates are the children of the model, and those of a Sequential, ModuleList or ModuleDict in it. A candidate
    with at least `least` parameters is a group. Inner candidates come first, and their parameters do not count
    again outside. If a parameter has another name outside its module, its module is no group. All remaining
    parameters stay with the model.
    """
    parents = [module for module in model.modules() if module is model or isinstance(module, _CONTAINERS)]
    children = {child for parent in parents for child in parent.children()}
    blocks = [module for module in model.modules() if module in children and not isinstance(module, _CONTAINERS)]
    names = _names(model)
    taken: set[nn.Parameter] = set()
    groups: set[nn.Module] = set()
    for block in reversed(blocks):
        within = _names(block)
        own = within.keys() - taken
        if sum(parameter.numel() for parameter in own) >= least and all(within[p] == names[p] for p in own):
            groups.add(block)
            taken |= own
    return [block for block in blocks if block in groups]


def shard_rows(rows: int, rank: int, world_size: int) -> range:
    """The rows of a parameter on node `rank`: equal runs, except that the last ones are shorter or empty."""
    each = -(-rows // world_size)
    return range(min(rank * each, rows), min((rank + 1) * each, rows))


def padded_bytes(parameter: nn.Parameter, world_size: int) -> int:
    """Bytes of `parameter` in a collective, padded so that all nodes have as many rows as the first."""
    rows = world_size * len(shard_rows(parameter.shape[0], 0, world_size))
    return rows * math.prod(parameter.shape[1:]) * parameter.element_size()


ShardingNodes = Exchanging | PlannedNode
"""The nodes that share the parameters: a `Fabric`, a `Group` of its nodes, or a planned node."""


class Gradients:
    """Averages the gradients of a backward pass one group of parameters at a time, to keep few buffers.

    With replicas of the model, the mean of a shard over these travels while the next group is averaged.
    """

    def __init__(self, inside: ShardingNodes, across: Group | None) -> None:
        self._inside, self._across = inside, across
        self._under_way: list[Iterator[None]] = []
        self._averaged: set[str] = set()

    def average(self, mine: Tensor, parts: Tensor, name: str) -> None:
        """Start averaging a group's gradients `parts` over nodes; `mine` is this node's part."""
        self._advance()
        stages = self._stages(mine, parts, name)
        next(stages)
        self._under_way.append(stages)
        if name in self._averaged:  # of a module used twice: torch adds them to the first ones at once
            self._wait()
        self._averaged.add(name)

    def finish(self) -> None:
        self._wait()
        self._averaged.clear()

    def _stages(self, mine: Tensor, parts: Tensor, name: str) -> Iterator[None]:
        scattered = self._inside.reduce_scatter_mean_async(mine, parts, name)
        yield
        scattered.wait()
        if self._across is not None:
            averaged = self._across.all_reduce_mean_async(mine, name)
            yield
            averaged.wait()

    def _advance(self) -> None:
        self._under_way = [stages for stages in self._under_way if next(stages, self) is None]

    def _wait(self) -> None:
        while self._under_way:
            self._advance()


@dataclass(frozen=True, kw_only=True)
class PlannedGroups:
    """The groups of a model on some nodes; the last group is the model's own.

    Attributes:
        gathered, reduced: bytes of each group's parameters, and of those with gradients, including padding.
        gradients: bytes of each group's gradients. largest_gradient: of one parameter.
        dtypes: of each group's gradients. group_of: the group of each trained parameter, by number.
        shards: nodes that share the parameters. world_size: all nodes.
        ahead: whether nodes gather the next group during the forward pass of a group.
        accumulate: minibatches in a step; several keep the gathered parameters from the first to the last.
    """

    gathered: list[int]
    reduced: list[int]
    gradients: list[int]
    largest_gradient: int
    dtypes: list[torch.dtype]
    group_of: list[int]
    shards: int
    world_size: int
    ahead: bool
    accumulate: int

    @classmethod
    def of(
        cls, model: nn.Module, least: int, shards: int, world_size: int, *, ahead: bool, accumulate: int = 1
    ) -> "PlannedGroups":
        members: list[list[nn.Parameter]] = []
        numbers: dict[nn.Parameter, int] = {}
        modules = gathered_modules(model, least)
        for module in reversed(modules):  # the innermost first
            own = [parameter for parameter in module.parameters() if parameter not in numbers]
            numbers.update(dict.fromkeys(own, len(modules) - 1 - len(members)))
            members.append(own)
        members.reverse()
        members.append([parameter for parameter in model.parameters() if parameter not in numbers])
        with_gradient = [[p for p in own if p.requires_grad] for own in members]
        return cls(
            gathered=[sum(padded_bytes(p, shards) for p in own) for own in members],
            reduced=[sum(padded_bytes(p, shards) for p in own) for own in with_gradient],
            gradients=[tensor_bytes(own) for own in with_gradient],
            largest_gradient=max((tensor_bytes([parameter]) for parameter in trained(model)), default=0),
            group_of=[numbers.get(parameter, len(modules)) for parameter in trained(model)],
            dtypes=[own[0].dtype if own else torch.float32 for own in with_gradient],
            shards=shards,
            world_size=world_size,
            ahead=ahead,
            accumulate=accumulate,
        )

    def buffers(self, backend: Backend) -> int:
        """The most bytes at one time of gathered parameters and transfers, beside the largest gradient.

        The backward pass of a group needs the most: the group, the next group to arrive, the group's gradients, and
        the gradients of the group before, which leave. NCCL gathers into a buffer that torch copies; it adds up
        gradients on the way, where with gloo the other nodes' parts arrive first. Accumulation keeps all groups and
        their gradients.
        """
        several, copied = self.shards > 1, backend == "nccl"
        if self.accumulate > 1:
            leaving = max(self._leaving(group, backend) for group in range(len(self.gathered)))
            return sum(self.gathered) + sum(self.gradients) + leaving
        *gathered, whole = self.gathered
        most = self.gradients[-1] + (self._leaving(0, backend) if gathered else 0)
        for group, size in enumerate(gathered):
            arriving = gathered[group - 1] if group and several else 0
            leaving = self._leaving(group + 1, backend) if group + 1 < len(gathered) else 0
            held = max(self.gradients[group], arriving) if copied else self.gradients[group]
            most = max(most, size + arriving + held + leaving)
        return whole + max(0, most - self.largest_gradient)

    def _leaving(self, group: int, backend: Backend) -> int:
        """Bytes of a reduce-scatter of a group: its gradients, and with gloo the other nodes' parts that arrive.

        Replicas exchange their means of a shard, also with NCCL by messages.
        """
        if self.shards == 1:
            return 0
        replicated = self.shards < self.world_size
        parts = self.shards - 1 if backend == "gloo" or replicated else 0
        return self.reduced[group] + self.reduced[group] * (parts + replicated) // self.shards

    def rounds(self, node: PlannedNode) -> Iterator[None]:
        """The rounds of a node, for a footprint."""
        groups = Groups(node, self.shards) if self.shards < self.world_size else None
        inside: ShardingNodes = node if groups is None else groups.inside
        gradients = Gradients(inside, None if groups is None else groups.across)

        def gather(group: int) -> Callable[[], object] | None:
            size = self.gathered[group]
            if not size or self.shards == 1:
                return None
            parts = torch.empty(size, dtype=torch.uint8, device="meta")
            return inside.all_gather_async(parts, parts[: size // self.shards], "").wait

        def average(group: int) -> None:
            if self.shards > 1:
                dtype = self.dtypes[group]
                parts = torch.empty(self.reduced[group] // dtype.itemsize, dtype=dtype, device="meta")
                gradients.average(parts[: len(parts) // self.shards].clone(), parts, str(group))

        own = len(self.gathered) - 1
        step = ShardedStep(node, self.group_of, own, gather, average, self.ahead, self.accumulate > 1)
        return step.rounds(gradients.finish, self.shards, self.accumulate)


def _names(module: nn.Module) -> Counter[nn.Parameter]:
    """The number of names of each parameter in `module`."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
