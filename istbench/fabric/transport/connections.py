"""One TCP connection to every peer, over gloo's interface."""

import contextlib
import fcntl
import json
import os
import socket
import struct
from datetime import timedelta

from istbench.fabric.signed_store import SignedStore
from istbench.fabric.transport.callers import MOST_CALLERS, admit, introduce

_SIOCGIFADDR = 0x8915


def connect_peers(store: SignedStore, rank: int, world_size: int, timeout_s: float) -> dict[int, socket.socket]:
    """Connect to every other rank; every rank must call this.

    Ranks exchange addresses through `store`. A caller proves that it has a key, derived from the store's key, which
    never crosses the network. The listener closes other connections; they delay nobody. The lower rank of a pair
    listens.

    Raises:
        OSError: if a peer does not connect within `timeout_s`.
    """
    peers = {}
    address = _own_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=world_size + MOST_CALLERS) as listener:
        place = {"address": address, "port": listener.getsockname()[1]}
        store.set(f"transport/{rank}", json.dumps(place))
        for peer in range(rank):
            peers[peer] = _call(store, rank, peer, timeout_s)
        peers |= admit(listener, _key(store, rank), set(range(rank + 1, world_size)), timeout_s)
    for connection in peers.values():
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _key(store: SignedStore, listener: int) -> bytes:
    return store.derived(f"transport to rank {listener}")


def _call(store: SignedStore, rank: int, peer: int, timeout_s: float) -> socket.socket:
    place = json.loads(store.wait(f"transport/{peer}", timedelta(seconds=timeout_s)))
    connection = socket.create_connection((place["address"], place["port"]), timeout=timeout_s)
    introduce(connection, _key(store, peer), rank)
    return connection


def _own_address() -> str:
    """This process's address for peers: of gloo's interface if it is set, else of the one towards the master."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return (name and address_of(name)) or address_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"))


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface of this machine; None if it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None


def address_towards(host: str) -> str:
    """This machine's address on the route to `host`.

    Raises:
        OSError: if there is no such host, or no route.
    """
    found = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
    # `localhost` may be ::1 first, where not all of a machine has IPv6.
    family, kind, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
    with socket.socket(family, kind) as probe:
        probe.connect(place)  # a datagram socket sends nothing here
        return str(probe.getsockname()[0])
