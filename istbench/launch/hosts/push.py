"""Data and plug-ins of this machine, copied to the hosts that lack them."""

import errno
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from istbench.base.errors import UserError
from istbench.base.files import is_there
from istbench.launch.hosts.connection import Connection, Refused, each
from istbench.launch.hosts.group import Say, Unfit
from istbench.launch.hosts.trees import LISTS_S, PART, File, list_tree, tree_digest

_WRITES_S = 300.0
_ON_ITS_WAY = 64
"""Parts of files that are sent before the first of them is answered."""


def push(connections: Sequence[Connection], paths: Sequence[str], say: Say) -> dict[str, dict[str, str]]:
    """Copy those of `paths` that exist here to the hosts that have other content, or nothing, at the same path.

    Only files whose content a host lacks cross the network; their SHA-256 is checked there.

    Returns:
        By host, the paths there of what it did not have in place.

    Raises:
        Unfit: naming the hosts that cannot take them. UserError: where a file here cannot be read.
    """
    trees = {path: _tree(path) for path in paths if is_there(path)}
    if not trees:
        return {connection.name: {} for connection in connections}
    with ThreadPoolExecutor(len(connections)) as pool:
        futures = {host.name: pool.submit(_copy_all, host, trees, say) for host in connections}
        try:
            found, problems = each(connections, lambda host: futures[host.name].result())
        except BaseException:
            for connection in connections:  # its thread may wait for the host
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


def _copy_all(host: Connection, trees: Mapping[str, Sequence[File]], say: Say) -> dict[str, str]:
    """Copy `trees`, by their paths here; returns the paths there of those that were not in place."""
    started, places, sent = time.monotonic(), {}, {}
    for path, files in trees.items():
        there = host.do("digest_tree", LISTS_S, path=path)
        if there != tree_digest(files):
            places[path], sent[path] = _copy(host, path, files)
    if size := sum(sent.values()):
        copied, seconds = ", ".join(path for path in sent if sent[path]), time.monotonic() - started
        say(f"copied {copied} to {host.name}: {size / 1e6:,.1f} MB in {seconds:.1f} s")
    return places


def _copy(host: Connection, path: str, files: Sequence[File]) -> tuple[str, int]:
    """Copy the tree of `files` at `path`; returns its place there, and the bytes sent."""
    own = Path(path).resolve() if Path(path).name == ".." else Path(path).absolute()
    tree = {"content": json.dumps(files).encode(), "name": own.name or "data"}
    offer = host.do("expect_tree", _WRITES_S, **tree)
    contents = {sha256: (Path(path, file) if file else Path(path), size) for file, size, _, sha256 in files}
    missing = [(*contents[sha256], sha256, None) for sha256 in offer["missing"]]
    size = sum(size for _, size, *_ in missing)
    full = (
        f"no space for {path}: {size / 1e6:,.1f} MB are to go to {offer['folder']}, and "
        f"{offer['free'] / 1e6:,.1f} MB are free; free some, or set ISTBENCH_CACHE there to a larger disk"
    )
    if size > offer["free"]:
        raise Refused(full)
    try:
        send(host, offer["incoming"], missing)
        return str(host.do("finish_tree", LISTS_S, incoming=offer["incoming"], **tree)), size
    except OSError as error:
        raise Refused(f"cannot read {error.filename or path} here: {error.strerror}") from None
    except Refused as error:
        if str(error) == os.strerror(errno.ENOSPC):
            raise Refused(full) from None
        raise Refused(f"cannot take {path} into {offer['folder']}: {error}") from None


def send(host: Connection, folder: str, files: Iterable[tuple[Path, int, str, int | None]]) -> None:
    """Copy `files` to `folder` on `host`: path here, bytes, name there, and its time of change in ns since 1970.

    Raises:
        Lost, Refused: if the host fails, or a file became shorter. OSError: if a file cannot be read here.
    """
    asked: deque[Future[Any]] = deque()
    for path, size, name, changed in files:
        with path.open("rb") as file:
            for offset in range(0, max(1, size), PART):
                content = file.read(min(PART, size - offset))
                if size and not content:
                    raise Refused(f"{path} became shorter while it was copied; run the same command again")
                if len(asked) == _ON_ITS_WAY:
                    host.answer(asked.popleft(), _WRITES_S)
                where = {"folder": folder, "name": name, "offset": offset, "changed": changed}
                asked.append(host.ask("write", content=content, **where))
    for future in asked:
        host.answer(future, _WRITES_S)
