"""Who connects to a listening node: peers, who have its key, and strangers, who must not hold them up.

The listener sends a challenge. A peer answers with its rank and an HMAC of both under the key, which itself never
crosses the network: who listens in can answer no other challenge.
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
HELLO = struct.Struct("<32sI")  # the proof, and the rank that connects
MOST_CALLERS = 64  # at a time that have not said who they are
_HELLO_S = 10.0


@dataclass(eq=False)
class _Caller:
    """Someone who has connected, until when it may say who it is, and what it has said so far."""

    connection: socket.socket
    until: float
    challenge: bytes
    said: bytes = b""


def introduce(connection: socket.socket, key: bytes, rank: int) -> None:
    """Prove to the listener at the other end of `connection` that this is `rank`, which has `key`.

    Raises:
        OSError: where the listener is gone, or says nothing in time.
    """
    challenge = b""
    while len(challenge) < CHALLENGE_BYTES:
        heard = connection.recv(CHALLENGE_BYTES - len(challenge))
        if not heard:
            raise ConnectionError("the connection was closed before it was answered")
        challenge += heard
    connection.sendall(HELLO.pack(_proof(key, challenge, rank), rank))


def _proof(key: bytes, challenge: bytes, rank: int) -> bytes:
    return hmac.new(key, challenge + struct.pack("<I", rank), hashlib.sha256).digest()


class Callers:
    """Those who connect to `listener`. All are heard at once; who does not have `key` is turned away."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._key = key
        self._unknown: list[_Caller] = []
        self._selector = selectors.DefaultSelector()

    def accept(self, awaited: Set[int], timeout_s: float) -> dict[int, socket.socket]:
        """The connections of the ranks `awaited`.

        Raises:
            TimeoutError: where one has not called within `timeout_s` seconds.
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
                self._turn_away_late()
        finally:
            for caller in list(self._unknown):
                self._turn_away(caller)
            self._selector.close()
        return peers

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            caller = _Caller(connection, time.monotonic() + _HELLO_S, secrets.token_bytes(CHALLENGE_BYTES))
            connection.send(caller.challenge)  # fits in the buffer of a new connection
            self._unknown.append(caller)
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _listen(self, caller: _Caller, awaited: Set[int], peers: dict[int, socket.socket]) -> None:
        """Hear what `caller` says now: one of `awaited` joins `peers`."""
        try:
            said = caller.connection.recv(HELLO.size - len(caller.said))  # not more: messages follow
        except BlockingIOError:
            return
        except OSError:
            said = b""
        caller.said += said
        if not said:
            self._turn_away(caller)
        elif len(caller.said) == HELLO.size:
            proof, rank = HELLO.unpack(caller.said)
            if hmac.compare_digest(proof, _proof(self._key, caller.challenge, rank)) and rank in awaited:
                self._let_go(caller)
                peers[rank] = caller.connection
            else:
                self._turn_away(caller)

    def _turn_away_late(self) -> None:
        """Turn away who has had its time, and the oldest where there are too many."""
        too_many, now = len(self._unknown) - MOST_CALLERS, time.monotonic()
        for number, caller in enumerate(list(self._unknown)):
            if number < too_many or caller.until <= now:
                self._turn_away(caller)

    def _turn_away(self, caller: _Caller) -> None:
        self._let_go(caller)
        caller.connection.close()

    def _let_go(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        self._unknown.remove(caller)
