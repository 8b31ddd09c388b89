"""Where the workers of a run live, and how they find one another."""

import contextlib
import os
import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


class Place(Protocol):
    """A network with a worker at each of its ends. Workers get a pickled copy."""

    @property
    def address(self) -> str:
        """Address at which the launching process listens, as workers see it."""

    def built(self) -> AbstractContextManager[None]:
        """Have the network inside."""

    def listening(self) -> AbstractContextManager[None]:
        """Have the launching thread's new sockets bound, inside, where workers reach them."""

    def enter(self, rank: int) -> None:
        """Bring the calling process, which has one thread, to its place as node `rank`."""


@dataclass(frozen=True)
class ThisMachine:
    """All nodes share this machine's loopback interface; nothing listens beyond it."""

    address: str = "127.0.0.1"

    def built(self) -> AbstractContextManager[None]:
        """Nothing to do: every machine has one."""
        return contextlib.nullcontext()

    def listening(self) -> AbstractContextManager[None]:
        """Nothing to do: loopback is where the launching process is."""
        return contextlib.nullcontext()

    def enter(self, rank: int) -> None:
        """Stay, and keep gloo to the loopback interface."""
        names = [name for _, name in socket.if_nameindex()]
        os.environ["GLOO_SOCKET_IFNAME"] = next((name for name in ("lo", "lo0") if name in names), names[0])
