"""Groups of nodes as an option of a method: the nodes of a host, or a number of consecutive ranks."""

from typing import Literal

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count
from istbench.fabric.group import ExchangingNode, Groups

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
        what = "1 node" if world_size == 1 else f"{world_size} nodes"
        raise UserError(f"{option}={nodes} does not divide {what} into equal groups; use one of {fitting}")


def groups_of(node: ExchangingNode, nodes: GroupNodes) -> Groups | None:
    """The groups of `nodes` nodes, as `check_group` accepts them; None for groups of one."""
    assert isinstance(nodes, int)
    return Groups(node, nodes) if nodes > 1 else None
