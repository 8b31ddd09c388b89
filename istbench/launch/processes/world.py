"""A process among those of a job, and the environment variables that tell it so, as torchrun sets them."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from istbench.base.errors import UserError, shown
from istbench.base.machine import RUN_KEY
from istbench.base.options.run import RunRequest

_MARK = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True, kw_only=True)
class World:
    """A process among all processes of one torchrun, or of another job, on one host or several.

    Attributes:
        rank: number of this process. size: number of processes. local_rank, local_size: the same on this host.
        host_rank: number of this host. master, port: address of the store of the processes.
        restart: number of restarts by torchrun.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    master: str
    port: int
    host_rank: int = 0
    restart: int = 0

    @cached_property
    def prefix(self) -> str:
        """The prefix of all keys in the store of torchrun, which still has the keys of an earlier start."""
        return f"istbench/{self.restart}"

    def first(self, nodes: int) -> "World":
        """The first `nodes` processes, which run one cell together.

        Raises:
            UserError: if torchrun started fewer.
        """
        if nodes > self.size:
            raise UserError(
                f"{nodes} nodes need as many processes, and torchrun started {self.size}: start more "
                "(--nnodes times --nproc-per-node), or give fewer --nodes"
            )
        before = self.rank - self.local_rank  # ranks of a host follow one another
        return dataclasses.replace(self, size=nodes, local_size=max(0, min(self.local_size, nodes - before)))

    def environment(self, threads: int, key: str) -> dict[str, str]:
        """The environment variables of this process of a job with `key`, whose libraries use so many threads."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.host_rank),
            "MASTER_ADDR": self.master,
            "MASTER_PORT": str(self.port),
            # The store exists: rank 0 must not open another at its address.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": str(threads),
            RUN_KEY: key,
        }

    def group_of(self, request: RunRequest) -> int:
        """The number of processes that train `request`. With `--elastic`, those that there are are enough."""
        return request.nodes if request.elastic is None else min(request.nodes, self.size)


def this_world(environment: Mapping[str, str] = os.environ) -> World | None:
    """The world of this process; None if torchrun did not start it.

    Raises:
        UserError: if the environment of torchrun is incomplete.
    """
    if _MARK not in environment:
        return None
    if environment.get("TORCHELASTIC_USE_AGENT_STORE", "True") != "True":
        raise UserError("the processes need the store of torchrun: unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE")

    def number(name: str, least: int) -> int:
        text = environment.get(name, "")
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise UserError(
                f"{_MARK} says that torchrun started this, but {name} is {shown(text)}; unset {_MARK}, or start "
                "it by torchrun"
            )
        return int(text)

    restarts = "TORCHELASTIC_RESTART_COUNT"
    return World(
        rank=number("RANK", 0),
        size=number("WORLD_SIZE", 1),
        local_rank=number("LOCAL_RANK", 0),
        local_size=number("LOCAL_WORLD_SIZE", 1),
        host_rank=number("GROUP_RANK", 0),
        master=environment.get("MASTER_ADDR", "localhost"),
        port=number("MASTER_PORT", 1),
        restart=number(restarts, 0) if restarts in environment else 0,
    )
