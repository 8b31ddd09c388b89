"""Data and plug-ins of this machine, copied to the hosts that lack them: both ends, and files by their content.

On a host, `<cache>/pushed/objects` has a file for each content, named by its SHA-256. `<cache>/pushed/<digest of a
tree>/NAME` is a directory (or a file) of hard links to them, complete once it exists.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.cache import cache_directory
from istbench.base.errors import UserError
from istbench.base.files import is_there, writing_whole
from istbench.base.options.texts import Short, Text
from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.connection import Connection, Refused, each, told
from istbench.launch.hosts.group import FreeBytes, Say, Unfit
from istbench.launch.hosts.remote_files import PART

LISTS_S = 7200.0
"""Time for the first listing, which reads all data."""
File = tuple[str, int, int, str]
"""A file of a tree: name in it (empty if the tree is one file), bytes, time of change in ns since 1970, SHA-256."""
_WRITES_S = 300.0
_ON_ITS_WAY = 64
"""Parts of files that are sent before the first of them is answered."""


class _Offer(msgspec.Struct, frozen=True):
    """The answer of `expect_tree`."""

    incoming: Text
    missing: frozenset[Short]
    free: FreeBytes
    folder: Text


def push(connections: Sequence[Connection], paths: Sequence[str], say: Say) -> dict[str, dict[str, str]]:
    """Copy those of `paths` that exist here to the hosts that have other content, or nothing, at the same path.

    Only files whose content a host lacks cross the network; their SHA-256 is checked there.

    Returns:
        By host, the paths there of what it did not have in place.

    Raises:
        Unfit: naming the hosts that cannot take them. UserError: where a file here cannot be read.
    """
    trees = {path: _listed(path) for path in paths if is_there(path)}
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


def _listed(path: str) -> list[File]:
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
    offer = told(host.name, host.do("expect_tree", _WRITES_S, **tree), _Offer)
    contents = {sha256: (Path(path, file) if file else Path(path), size) for file, size, _, sha256 in files}
    missing = [(*place, sha256, None) for sha256, place in contents.items() if sha256 in offer.missing]
    size = sum(size for _, size, *_ in missing)
    full = (
        f"no space for {path}: {size / 1e6:,.1f} MB are to go to {offer.folder}, and "
        f"{offer.free / 1e6:,.1f} MB are free; free some, or set ISTBENCH_CACHE there to a larger disk"
    )
    if size > offer.free:
        raise Refused(full)
    try:
        send(host, offer.incoming, missing)
        finished = host.do("finish_tree", LISTS_S, incoming=offer.incoming, **tree)
        return told(host.name, finished, Text), size
    except OSError as error:
        raise Refused(f"cannot read {error.filename or path} here: {error.strerror}") from None
    except Refused as error:
        if str(error) == os.strerror(errno.ENOSPC):
            raise Refused(full) from None
        raise Refused(f"cannot take {path} into {offer.folder}: {error}") from None


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


def list_tree(path: Path) -> list[File]:
    """All files under `path`, or `path` itself, by name; follows symbolic links.

    Reads a file only if its size or time of change differs from those of the last listing, which the cache keeps.

    Raises:
        OSError: where a file cannot be read.
    """
    named = cache_directory() / "listings" / f"{_sha256(os.fsencode(path.absolute()))[:32]}.json"
    known: dict[tuple[str, int, int], str] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = {(name, size, changed): sha256 for name, size, changed, sha256 in json.loads(named.read_bytes())}
    found: list[File] = []
    for name, file in _files(path):
        status = file.stat()
        stamp = (name, status.st_size, status.st_mtime_ns)
        found.append((*stamp, known.get(stamp) or file_sha256(file)))
    found.sort()
    if {file[:3] for file in found} != known.keys():
        with contextlib.suppress(OSError), writing_whole(named) as memory:
            memory.write(json.dumps(found).encode())
    return found


def tree_digest(files: Sequence[File]) -> str:
    """A digest of names and contents, equal for equal trees wherever they lie."""
    return _sha256(json.dumps([(name, size, sha256) for name, size, _, sha256 in files]).encode())


def file_sha256(path: Path) -> str:
    """The SHA-256 of the content of file `path`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield "", path
        return
    above: dict[str, frozenset[tuple[int, int]]] = {str(path): frozenset()}
    for folder, folders, names in os.walk(path, followlinks=True):
        status, others = Path(folder).stat(), above.pop(folder)
        own = status.st_dev, status.st_ino
        if own in others:  # a link to a directory above
            folders.clear()
            continue
        folders[:] = [name for name in folders if name != "__pycache__"]  # Python writes it beside a plug-in
        above |= {os.path.join(folder, name): others | {own} for name in folders}  # noqa: PTH118  (as os.walk does)
        for name in names:
            file = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):  # a link to nothing
                if stat.S_ISREG(file.stat().st_mode):
                    yield str(file.relative_to(path)), file


def _private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for own in (folder, folder.parent):
        own.chmod(0o700)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def digest_there(_agent: Agent, question: Mapping[str, Any]) -> str | None:
    """On a host: the digest of the tree at `path`; None if there is nothing."""
    path = Path(question["path"])
    return tree_digest(list_tree(path)) if path.exists() else None


def expect_tree(agent: Agent, question: Mapping[str, Any]) -> dict[str, Any]:
    """On a host: prepare for a tree `name` of the files in `content`.

    Returns:
        incoming: the folder for the contents that are `missing`, each named by its SHA-256.
        free: bytes in `folder`, which has all trees.
    """
    files, place, objects = _tree(question)
    _private(objects)
    incoming = tempfile.mkdtemp(prefix=".part-", dir=objects.parent)
    agent.undo.append(partial(_keep, Path(incoming), objects))
    sizes = {} if place.exists() else {sha256: size for _, size, _, sha256 in files}
    kept = {path.name: path.stat().st_size for path in objects.iterdir()}
    return {
        "incoming": incoming,
        "missing": [sha256 for sha256, size in sizes.items() if kept.get(sha256) != size],
        "free": shutil.disk_usage(objects).free,
        "folder": str(objects.parent),
    }


def finish_tree(_agent: Agent, question: Mapping[str, Any]) -> str:
    """On a host: put the tree of `expect_tree` at its place, at once; returns its path."""
    files, place, objects = _tree(question)
    _keep(Path(question["incoming"]), objects)
    if not place.exists():
        _private(place.parent)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
        try:
            if not files:
                (new / "tree").mkdir()
            for name, _, changed, sha256 in files:
                target = new / "tree" / name if name else new / "tree"
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(objects / sha256, target)
                os.utime(target, ns=(changed, changed))
            os.sync()
            with contextlib.suppress(OSError):  # another host with the same home directory was first
                (new / "tree").rename(place)
        except FileNotFoundError:
            raise OSError("a file changed while it was copied; run the same command again") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return str(place)


def _tree(question: Mapping[str, Any]) -> tuple[list[File], Path, Path]:
    """The files of a tree, its place on this host, and the directory of contents."""
    files: list[File] = json.loads(question["content"])
    root = cache_directory() / "pushed"
    return files, root / tree_digest(files)[:32] / question["name"], root / "objects"


def _keep(incoming: Path, objects: Path) -> None:
    """Move the files in `incoming` that came whole to `objects`, and delete the others."""
    for part in incoming.iterdir():
        if file_sha256(part) == part.name:
            part.chmod(0o600)
            part.replace(objects / part.name)
    shutil.rmtree(incoming, ignore_errors=True)
