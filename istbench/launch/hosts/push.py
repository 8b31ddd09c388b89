"""Data and plug-ins of this machine, copied to the hosts that lack them."""

import errno
import json
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from istbench.base.errors import UserError
from istbench.launch.hosts.connection import Connection, Lost, Refused
from istbench.launch.hosts.group import Say, Unfit
from istbench.launch.hosts.trees import LISTS_S, PART, File, list_tree, tree_digest

_WRITES_S = 300.0
_ON_ITS_WAY = 4
"""Frames that are sent before the first of them is answered."""


def push(connections: Sequence[Connection], paths: Sequence[str], say: Say) -> dict[str, dict[str, str]]:
    """Copy those of `paths` that exist here to the hosts that have other content, or nothing, at the same path.

    Only files whose content a host lacks cross the network; their SHA-256 is checked there.

    Returns:
        By host, the paths there of what it did not have in place.

    Raises:
        Unfit: naming the hosts that cannot take them. UserError: where a file here cannot be read.
    """
    trees = {path: _tree(path) for path in paths if Path(path).exists()}
    if not trees:
        return {connection.name: {} for connection in connections}
    over = threading.Event()
    with ThreadPoolExecutor(len(connections)) as pool:
        pushes = [_Push(connection, over, say) for connection in connections]
        futures = [pool.submit(own.all, trees) for own in pushes]
        try:
            found, problems = {}, []
            for connection, future in zip(connections, futures, strict=True):
                try:
                    found[connection.name] = future.result()
                except (Lost, Refused) as error:
                    problems.append(f"{connection.name}: {error}")
        except BaseException:
            over.set()
            for connection in connections:  # a thread may wait for the answer of a host
                connection.hang_up()
            raise
    if problems:
        raise Unfit(problems)
    return found


def _tree(path: str) -> list[File]:
    try:
        return list_tree(Path(path))
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror}; give what you may read") from None


class _Push:
    """Copies trees to one host, until `over`."""

    def __init__(self, connection: Connection, over: threading.Event, say: Say) -> None:
        self._connection, self._over, self._say = connection, over, say
        self._sent = 0

    def all(self, trees: Mapping[str, Sequence[File]]) -> dict[str, str]:
        """Copy `trees`, by their paths here; returns the paths there of those that were not in place."""
        started, places, copied = time.monotonic(), {}, []
        for path, files in trees.items():
            before = self._sent
            there = self._connection.do("digest_tree", LISTS_S, path=path)
            if there != tree_digest(files):
                places[path] = self._copy(path, files)
            if self._sent > before:
                copied.append(path)
        if copied:
            size, seconds = self._sent / 1e6, time.monotonic() - started
            self._say(f"copied {', '.join(copied)} to {self._connection.name}: {size:,.1f} MB in {seconds:.1f} s")
        return places

    def _copy(self, path: str, files: Sequence[File]) -> str:
        tree, name = secrets.token_hex(8), Path(path).absolute().name or "data"
        listing = json.dumps(files).encode()
        offer = self._connection.do("expect_tree", _WRITES_S, content=listing, tree=tree, name=name)
        missing = set(offer["missing"])
        contents = {sha256: (Path(path, file) if file else Path(path), size) for file, size, _, sha256 in files}
        wanted = {sha256: of for sha256, of in contents.items() if sha256 in missing}
        size = sum(size for _, size in wanted.values())
        if size > offer["free"]:
            raise Refused(self._full(path, size, offer))
        try:
            self._send(tree, wanted)
            place = self._connection.do("finish_tree", LISTS_S, tree=tree)
        except OSError as error:
            raise Refused(f"cannot read {error.filename or path} here: {error.strerror}") from None
        except Refused as error:
            if str(error) == os.strerror(errno.ENOSPC):
                raise Refused(self._full(path, size, offer)) from None
            raise Refused(f"cannot take {path} into {offer['folder']}: {error}") from None
        return str(place)

    def _full(self, path: str, size: int, offer: Mapping[str, Any]) -> str:
        return (
            f"no space for {path}: {size / 1e6:,.1f} MB are to go to {offer['folder']}, and "
            f"{offer['free'] / 1e6:,.1f} MB are free; free some, or set ISTBENCH_CACHE there to a larger disk"
        )

    def _send(self, tree: str, contents: Mapping[str, tuple[Path, int]]) -> None:
        sent: deque[Future[Any]] = deque()
        for pieces, content in _frames(contents):
            if self._over.is_set():
                raise Lost("the copy was ended")
            if len(sent) == _ON_ITS_WAY:
                self._connection.answer(sent.popleft(), _WRITES_S)
            sent.append(self._connection.ask("write_pieces", content=content, tree=tree, pieces=pieces))
            self._sent += len(content)
        for future in sent:
            self._connection.answer(future, _WRITES_S)


def _frames(contents: Mapping[str, tuple[Path, int]]) -> Iterator[tuple[list[tuple[str, int, int]], bytes]]:
    """The files as pieces (SHA-256, offset, bytes), several small files or a part of a large one in a frame."""
    pieces: list[tuple[str, int, int]] = []
    content = bytearray()
    for sha256, (path, size) in contents.items():
        with path.open("rb") as file:
            offset = 0
            while offset < size or not size:
                part = file.read(min(PART - len(content), size - offset))
                if not part and size:
                    raise Refused(f"{path} became shorter while it was copied; run the same command again")
                pieces.append((sha256, offset, len(part)))
                content += part
                offset += len(part)
                if len(content) >= PART or len(pieces) >= 1000:
                    yield pieces, bytes(content)
                    pieces, content = [], bytearray()
                if not size:
                    break
    if pieces:
        yield pieces, bytes(content)
