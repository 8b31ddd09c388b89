"""On a host: test and measure links to other hosts; it listens only during the tests."""

import contextlib
import hmac
import socket
import statistics
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from istbench.launch.hosts.agent_program import Agent

CONNECTS_S = 3.0
_HEADER = struct.Struct("!64scd")  # token, service, seconds
_STRANGER_S = 2.0
_TEST, _ECHO, _SINK = b"r", b"e", b"s"
_OK = b"!"
_PING = 16
_CHUNK = 1 << 18
# Share of the time left out at the start: buffers fill, and an idle shaped link carries its bucket at once.
_WARM = 0.3
_RESULT = struct.Struct("!dd")
_listeners: list[socket.socket] = []


def listen(agent: Agent, question: Mapping[str, Any]) -> int:
    """Listen at `address` (at all if empty) for callers with `token`, until `stop_listening`; returns the port."""
    listener = socket.create_server((question["address"], 0), backlog=64)
    _listeners.append(listener)
    agent.undo.append(listener.close)
    threading.Thread(target=_accept, args=(listener, question["token"].encode()), daemon=True).start()
    return int(listener.getsockname()[1])


def stop_listening(_agent: Agent, _question: Mapping[str, Any]) -> None:
    """Close what `listen` opened."""
    while _listeners:
        listener = _listeners.pop()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def try_connections(_agent: Agent, question: Mapping[str, Any]) -> list[list[str]]:
    """For each of `places` (address, port, token): the own address that calls, and why it fails, "" if it works."""

    def one(place: Sequence[Any]) -> list[str]:
        try:
            with _called(place, _TEST, 0) as connection:
                return [str(connection.getsockname()[0]), ""]
        except OSError as error:
            return ["", error.strerror or str(error)]

    with ThreadPoolExecutor(max(1, len(question["places"]))) as pool:
        return list(pool.map(one, question["places"]))


def latency(_agent: Agent, question: Mapping[str, Any]) -> float:
    """Median latency to `place` one way, in seconds."""
    seconds = question["seconds"]
    with _called(question["place"], _ECHO, seconds) as connection:
        trips: list[float] = []
        until = time.perf_counter() + seconds / 4
        while len(trips) < 200 and (len(trips) < 5 or time.perf_counter() < until):
            started = time.perf_counter()
            connection.sendall(bytes(_PING))
            _exactly(connection, _PING)
            trips.append(time.perf_counter() - started)
    return statistics.median(trips) / 2


def bandwidth(_agent: Agent, question: Mapping[str, Any]) -> float:
    """Bandwidth from here to `place` in bits/s."""
    seconds = question["seconds"]
    with _called(question["place"], _SINK, seconds) as connection:
        chunk, until = memoryview(bytes(_CHUNK)), time.perf_counter() + seconds
        while time.perf_counter() < until:
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        size, took = _RESULT.unpack(_exactly(connection, _RESULT.size))
    return 8 * size / max(took, 1e-9)


@contextlib.contextmanager
def _called(place: Sequence[Any], wanted: bytes, seconds: float) -> Any:
    address, port, token = place
    with socket.create_connection((address, port), timeout=CONNECTS_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_HEADER.pack(token.encode(), wanted, seconds))
        if _exactly(connection, 1) != _OK:
            raise OSError("something else answers there")
        connection.settimeout(CONNECTS_S + 10 * seconds)
        yield connection


def _accept(listener: socket.socket, token: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, token), daemon=True).start()


def _serve(connection: socket.socket, token: bytes) -> None:
    """Serve a caller that sends the token; close the connection of any other."""
    with contextlib.suppress(OSError), connection:
        connection.settimeout(_STRANGER_S)
        theirs, wanted, seconds = _HEADER.unpack(_exactly(connection, _HEADER.size))
        if not hmac.compare_digest(theirs, token):
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_OK)
        connection.settimeout(CONNECTS_S + 10 * seconds)
        if wanted == _ECHO:
            while True:
                connection.sendall(_exactly(connection, _PING))
        if wanted == _SINK:
            connection.sendall(_RESULT.pack(*_drained(connection, _WARM * seconds)))


def _drained(connection: socket.socket, warm_s: float) -> tuple[float, float]:
    """Count received bytes and seconds until the sender closes, ignoring the first `warm_s` seconds."""
    place = memoryview(bytearray(_CHUNK))
    started, size, begun = time.perf_counter(), 0, 0.0
    last = started
    while count := connection.recv_into(place):
        last = time.perf_counter()
        if begun:
            size += count
        elif last - started >= warm_s:
            begun = last
    return float(size), last - begun if begun else 0.0


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise OSError("it hung up")
        content += part
    return content
