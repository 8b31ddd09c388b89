"""Authenticate the processes that connect to a listening node; a stranger cannot delay the peers.

The listener sends a challenge. A peer answers with its rank and an HMAC of both under the job's key. The key never
crosses the network, so an eavesdropper cannot answer another challenge.
"""

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Set
from dataclasses import dataclass

CHALLENGE_BYTES = 32
ANSWER = struct.Struct("<32sI")  # the proof, and the rank of the caller
MOST_CALLERS = 64  # unauthenticated connections at a time, beside those of the awaited peers
_ANSWER_S = 10.0


@dataclass(eq=False)
class _Caller:
    """An unauthenticated connection, the deadline for its answer, and the bytes of the answer so far."""

    connection: socket.socket
    until: float
    challenge: bytes
    received: bytes = b""


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


class Callers:
    """Accepts connections to `listener`, all at once, and closes those without `key`."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._key = key
        self._unknown: list[_Caller] = []
        self._selector = selectors.DefaultSelector()

    def accept(self, awaited: Set[int], timeout_s: float) -> dict[int, socket.socket]:
        """Return the connections of the ranks `awaited`.

        Raises:
            TimeoutError: if one of them does not connect within `timeout_s` seconds.
        """
        peers: dict[int, socket.socket] = {}
        until = time.monotonic() + timeout_s
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while awaited - peers.keys():
                if time.monotonic() >= until:
                    raise TimeoutError("timed out")
                first_end = min([until, *(caller.until for caller in self._unknown)])
                for key, _ in self._selector.select(max(0.0, first_end - time.monotonic())):
                    if key.data is None:
                        self._answer()
                    else:
                        self._listen(key.data, awaited - peers.keys(), peers)
                self._turn_away_late(MOST_CALLERS + len(awaited - peers.keys()))
        finally:
            for caller in list(self._unknown):
                self._turn_away(caller)
            self._selector.close()
        return peers

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # the caller has left
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            caller = _Caller(connection, time.monotonic() + _ANSWER_S, secrets.token_bytes(CHALLENGE_BYTES))
            connection.send(caller.challenge)  # fits in the buffer of a new connection
            self._unknown.append(caller)
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _listen(self, caller: _Caller, awaited: Set[int], peers: dict[int, socket.socket]) -> None:
        """Read from `caller`. If its answer proves a rank of `awaited`, add the connection to `peers`."""
        try:
            chunk = caller.connection.recv(ANSWER.size - len(caller.received))  # no more: messages follow
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        caller.received += chunk
        if not chunk:
            self._turn_away(caller)
        elif len(caller.received) == ANSWER.size:
            proof, rank = ANSWER.unpack(caller.received)
            if hmac.compare_digest(proof, _proof(self._key, caller.challenge, rank)) and rank in awaited:
                self._let_go(caller)
                peers[rank] = caller.connection
            else:
                self._turn_away(caller)

    def _turn_away_late(self, most: int) -> None:
        """Close the connections whose deadline has passed, and the oldest if there are more than `most`."""
        too_many, now = len(self._unknown) - most, time.monotonic()
        for number, caller in enumerate(list(self._unknown)):
            if number < too_many or caller.until <= now:
                self._turn_away(caller)

    def _turn_away(self, caller: _Caller) -> None:
        self._let_go(caller)
        caller.connection.close()

    def _let_go(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        self._unknown.remove(caller)
