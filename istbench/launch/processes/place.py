"""The network that the workers of a run use to reach one another."""

import contextlib
import os
import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A network that connects the workers of a run. Workers get a pickled copy.

    By default nobody has to build it, and the launching process is on it.

    Attributes:
        address: the launcher's address on this network.
    """

    address: str

    def built(self) -> AbstractContextManager[None]:
        """Build the network; remove it on exit."""
        return contextlib.nullcontext()

    def listening(self) -> AbstractContextManager[None]:
        """Inside, new sockets of the launching thread are on this network, where workers can connect."""
        return contextlib.nullcontext()

    def enter(self, rank: int) -> None:
        """Move the calling process, which has one thread, to this network as node `rank`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ThisMachine(Place):
    """All nodes use this machine's loopback interface. No socket listens on another interface."""

    address: str = "127.0.0.1"

    def enter(self, rank: int) -> None:
        """Restrict gloo and NCCL to the loopback interface."""
        names = [name for _, name in socket.if_nameindex()]
        loopback = next((name for name in ("lo", "lo0") if name in names), names[0])
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
