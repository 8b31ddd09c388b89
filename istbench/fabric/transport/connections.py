"""One TCP connection to every peer, over gloo's interface. A stranger that connects cannot delay the peers.

The listener sends a challenge. A peer answers with its rank and an HMAC of both under the job's key. The key never
crosses the network, so an eavesdropper cannot answer another challenge.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
from collections.abc import Set
from datetime import timedelta

from istbench.fabric.signed_store import SignedStore

CHALLENGE_BYTES = 32
ANSWER = struct.Struct("<32sI")  # the proof, and the rank of the caller
MOST_CALLERS = 64  # unauthenticated connections at a time, beside those of the awaited peers
_ANSWER_S = 10.0
_SIOCGIFADDR = 0x8915


def connect_peers(store: SignedStore, rank: int, world_size: int, timeout_s: float) -> dict[int, socket.socket]:
    """Connect to every other rank; every rank must call this.

    Ranks exchange addresses through `store`, and derive their keys from its key. The lower rank of a pair listens.

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


def introduce(connection: socket.socket, key: bytes, rank: int) -> None:
    """Prove to the listener at the other end of `connection` that this process is `rank` and has `key`.

    Raises:
        OSError: if the listener has left, or sends no challenge in time.
    """
    challenge = b""
    while len(challenge) < CHALLENGE_BYTES:
        chunk = connection.recv(CHALLENGE_BYTES - len(challenge))
        if not chunk:
            raise ConnectionError("the listener closed the connection before its challenge")
        challenge += chunk
    connection.sendall(ANSWER.pack(_proof(key, challenge, rank), rank))


def _proof(key: bytes, challenge: bytes, rank: int) -> bytes:
    return hmac.new(key, challenge + struct.pack("<I", rank), hashlib.sha256).digest()


def admit(listener: socket.socket, key: bytes, awaited: Set[int], timeout_s: float) -> dict[int, socket.socket]:
    """Accept connections to `listener`, all at once; return those of the ranks `awaited`, and close the others.

    Raises:
        TimeoutError: if one of the ranks does not connect within `timeout_s` seconds.
    """
    if not awaited:
        return {}
    try:
        return asyncio.run(asyncio.wait_for(_admit(listener, key, awaited), timeout_s))
    except TimeoutError:
        raise TimeoutError("timed out") from None


async def _admit(listener: socket.socket, key: bytes, awaited: Set[int]) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    unknown: dict[asyncio.Task[int | None], socket.socket] = {}  # the oldest first
    complete = asyncio.Event()

    def judge(answer: asyncio.Task[int | None]) -> None:
        connection = unknown.pop(answer)
        rank = None if answer.cancelled() else answer.result()
        if rank is None or rank not in awaited - peers.keys():
            connection.close()
            return
        peers[rank] = connection
        if peers.keys() == awaited:
            complete.set()

    async def answer_callers() -> None:
        while True:
            await asyncio.sleep(0)  # `sock_accept` gives way to nobody while callers wait
            with contextlib.suppress(OSError):  # the caller has left
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                answer = asyncio.create_task(_proven_rank(connection, key))
                unknown[answer] = connection
                answer.add_done_callback(judge)
            most = MOST_CALLERS + len(awaited - peers.keys())
            for oldest in list(unknown)[: max(0, len(unknown) - most)]:
                oldest.cancel()

    listener.setblocking(False)
    accepting = asyncio.create_task(answer_callers())
    await complete.wait()
    accepting.cancel()
    return peers


async def _proven_rank(connection: socket.socket, key: bytes) -> int | None:
    """Challenge the caller; return its rank, or None if it leaves, proves none, or lets the time pass."""
    loop, challenge, received = asyncio.get_running_loop(), secrets.token_bytes(CHALLENGE_BYTES), b""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_ANSWER_S):
            await loop.sock_sendall(connection, challenge)
            while len(received) < ANSWER.size:
                chunk = await loop.sock_recv(connection, ANSWER.size - len(received))  # no more: messages follow
                if not chunk:
                    return None
                received += chunk
        proof, rank = ANSWER.unpack(received)
        if hmac.compare_digest(proof, _proof(key, challenge, rank)):
            return int(rank)
    return None
