"""The process group as the user's code sees it while one rank runs that code alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.distributed_c10d import GroupMember, _world

from istbench.base.errors import UserError

_MESSAGES = ("all", "_all", "reduce", "_reduce", "broadcast", "gather", "scatter", "send", "recv", "barrier")


@contextmanager
def no_messages_of(whose: str) -> Iterator[None]:
    """Inside, code that sends messages through torch's default process group is refused; `whose` names it.

    The other ranks wait meanwhile: they would take its message for another one, and abort.
    """
    world: Any = GroupMember.WORLD
    if world is None or world.size() == 1:
        yield
        return
    silent: Any = _Silent(world, whose)
    tables: list[Any] = [_world.pg_map, _world.pg_names, _world.pg_group_ranks, _world.pg_backend_config]
    for table in tables:
        table[silent] = table[world]
    GroupMember.WORLD = silent
    try:
        yield
    finally:
        GroupMember.WORLD = world
        for table in tables:
            del table[silent]


class _Silent:
    def __init__(self, group: Any, whose: str) -> None:
        self._group, self._whose = group, whose

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_MESSAGES):
            raise UserError(
                f"{self._whose} sends messages of its own through torch.distributed ({name}), which mix with those "
                "of a method and are not counted; switch them off in model() (SyncBatchNorm: use BatchNorm), or "
                "train on one node"
            )
        return getattr(self._group, name)
