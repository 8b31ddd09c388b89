"""Collectives among some of the nodes, by exchanges in turns.

Traces know collectives of all nodes alone. So a group exchanges messages between two nodes at a time, as
`Fabric.all_gather_async` does. A trace has each message, and a replay sends it over the links of its two nodes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count
from istbench.base.units import counted
from istbench.fabric.all_reduce import Waiting, averaging, finish, gathering, mean_in_turns
from istbench.fabric.exchanges import Turn, peers_by_turn
from istbench.fabric.pending import Pending


class ExchangingNode(Protocol):
    """A node that exchanges messages with others: a `Fabric`, or one in a plan."""

    rank: int
    world_size: int

    def exchange_async(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str) -> Waiting: ...

    def exchange_in_turns_async(self, turns: Sequence[Turn], name: str) -> Waiting: ...


class Group:
    """Some nodes, of which this node is one.

    All nodes must call the functions of their groups in the same order. A node sends as many bytes as in a ring.

    Attributes:
        rank: place of this node among the members. world_size: number of members.
    """

    host_nodes = 1  # the members are on one host, or each on another

    def __init__(self, node: ExchangingNode, ranks: Sequence[int]) -> None:
        self._node, self._ranks = node, ranks
        self.rank, self.world_size = ranks.index(node.rank), len(ranks)

    def exchange_async(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str) -> Waiting:
        """Start an exchange with members, by their places; see `Fabric.exchange_async`."""
        return self._node.exchange_async(self._by_rank(sends), self._by_rank(receives), name)

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> Pending:
        """Start to fill flat `parts` with every member's `mine`; see `Fabric.all_gather_async`."""
        pieces = gathering(parts, mine, self.rank, self.world_size)
        return Pending(self._in_turns([mine] * self.world_size, pieces, name).wait)

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> Pending:
        """Start averaging flat `parts` over members; see `Fabric.reduce_scatter_mean_async`."""
        leaving, arriving, average = averaging(mine, parts, self.rank, self.world_size)
        under_way = self._in_turns(leaving, arriving, name)
        return Pending(lambda: (under_way.wait(), average()))

    def all_reduce_mean(self, tensor: Tensor, name: str) -> None:
        """Replace `tensor` on every member by the mean over members, the same bits on all."""
        self.all_reduce_mean_async(tensor, name).wait()

    def all_reduce_mean_async(self, tensor: Tensor, name: str) -> Pending:
        """Start to do so. The last messages may leave in the wait only."""
        steps = mean_in_turns(self, tensor, name)
        next(steps, None)
        return Pending(lambda: finish(steps))

    def _in_turns(self, leaving: Sequence[Tensor], arriving: Sequence[Tensor], name: str) -> Waiting:
        turns = [
            (self._by_rank({to: leaving[to]}), self._by_rank({source: arriving[source]}))
            for to, source in peers_by_turn(self.rank, self.world_size)
        ]
        return self._node.exchange_in_turns_async(turns, name)

    def _by_rank(self, buffers: Mapping[int, Tensor]) -> dict[int, Tensor]:
        return {self._ranks[place]: buffer for place, buffer in buffers.items()}


class Groups:
    """Groups of `nodes` consecutive ranks, such as those of a host.

    Attributes:
        inside: the group of this node. across: the nodes at this node's place in all groups.
    """

    def __init__(self, node: ExchangingNode, nodes: int) -> None:
        first, place = node.rank - node.rank % nodes, node.rank % nodes
        self.inside = Group(node, range(first, first + nodes))
        self.across = Group(node, range(place, node.world_size, nodes))

    def all_reduce_mean(self, tensor: Tensor, name: str, alike: int | None = None) -> None:
        """Replace flat `tensor` by the mean over all nodes.

        alike: the first values that are the same on all nodes of a group; by default all of them.

        Each node averages an equal part with the nodes at its place. Then the group gathers the parts. So a tensor
        crosses the link of a host as often as with one node to a host; a mean by all nodes of their whole tensors
        sends it once for each node.
        """
        if alike is not None:
            self.inside.all_reduce_mean(tensor[alike:], name)
        if self.across.world_size == 1 or not tensor.numel():
            return
        parts = self.inside.world_size
        short = -tensor.numel() % parts
        padded = torch.nn.functional.pad(tensor, (0, short)) if short else tensor
        mine = padded.view(parts, -1)[self.inside.rank]
        self.across.all_reduce_mean(mine, name)
        self.inside.all_gather_async(padded, mine, name).wait()
        if short:
            tensor.copy_(padded[: tensor.numel()])


GroupNodes = Count | Literal["host"]
"""The launcher replaces `host` by the number of nodes of a host, so that a cell's name has the number."""


def check_group(option: str, nodes: GroupNodes, world_size: int) -> None:
    """Check that groups of `nodes` divide the nodes of a run.

    Raises:
        UserError: if they do not, or if the run does not know its hosts.
    """
    if nodes == "host":
        raise UserError(
            f"{option}=host: this run does not know how many nodes share a host; give a number, such as {option}=2"
        )
    if world_size % nodes:
        fitting = ", ".join(str(size) for size in range(1, world_size + 1) if world_size % size == 0)
        all_nodes = counted(world_size, "node")
        raise UserError(f"{option}={nodes} does not divide {all_nodes} into equal groups; use one of {fitting}")


def groups_of(node: ExchangingNode, nodes: GroupNodes) -> Groups | None:
    """The groups of `nodes` nodes, as `check_group` accepts them; None for groups of one."""
    assert isinstance(nodes, int)
    return Groups(node, nodes) if nodes > 1 else None
