"""Files by content: a listing with SHA-256 of every file, and the trees that a host keeps of what came to it.

`<cache>/pushed/objects` has a file for each content, named by its SHA-256. `<cache>/pushed/<digest of a tree>/NAME`
is a directory (or a file) of hard links to them, complete once it exists.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from istbench.base.files import writing_whole
from istbench.launch.hosts.action import Agent
from istbench.workloads.cache import cache_directory

PART = 1 << 20
LISTS_S = 7200.0
"""Time for the first listing, which reads all data."""
File = tuple[str, int, int, str]
"""A file of a tree: name in it (empty if the tree is one file), bytes, time of change in ns since 1970, SHA-256."""

_incoming: dict[str, "_Incoming"] = {}


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
    seen = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link to a directory above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if name != "__pycache__"]  # Python writes it beside a plug-in
        for name in names:
            file = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):  # a link to nothing
                if stat.S_ISREG(file.stat().st_mode):
                    yield str(file.relative_to(path)), file


class _Incoming:
    """A tree that comes to this host, in pieces and in any order."""

    def __init__(self, root: Path, name: str, files: Sequence[File]) -> None:
        self._objects, self._files = root / "objects", files
        self.place = root / tree_digest(files)[:32] / name
        self._sizes = {sha256: size for _, size, _, sha256 in files}
        self._came = dict.fromkeys(self._sizes, 0)
        self._parts: Path | None = None
        self._lock = threading.Lock()

    def missing(self) -> list[str]:
        """SHA-256s of the contents that this host has not yet."""
        if self.place.exists():
            return []
        return [sha256 for sha256, size in self._sizes.items() if not self._has(sha256, size)]

    def write(self, sha256: str, offset: int, content: bytes) -> None:
        """Write a piece; with its last one, check the SHA-256 of the file and keep it."""
        with self._lock:
            if self._parts is None:
                _private(self._objects)
                self._parts = Path(tempfile.mkdtemp(prefix=".part-", dir=self._objects.parent))
            part = self._parts / sha256
            part.touch(0o600)
        with part.open("r+b") as file:
            file.seek(offset)
            file.write(content)
        with self._lock:
            self._came[sha256] += len(content)
            whole = self._came[sha256] == self._sizes[sha256]
        if whole:
            if file_sha256(part) != sha256:
                raise OSError("a file changed while it was copied; run the same command again")
            part.replace(self._objects / sha256)

    def finish(self) -> str:
        """Link all files at their place, at once; returns it."""
        if not self.place.exists():
            _private(self.place.parent)
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=self.place.parent))
            try:
                if not self._files:
                    (new / "tree").mkdir()
                for name, _, changed, sha256 in self._files:
                    target = new / "tree" / name if name else new / "tree"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _link(self._objects / sha256, target)
                    os.utime(target, ns=(changed, changed))
                os.sync()
                with contextlib.suppress(OSError):  # another host with the same home directory was first
                    (new / "tree").rename(self.place)
            finally:
                shutil.rmtree(new, ignore_errors=True)
        self.clear()
        return str(self.place)

    def clear(self) -> None:
        """Delete the files that did not come whole."""
        if self._parts is not None:
            shutil.rmtree(self._parts, ignore_errors=True)

    def _has(self, sha256: str, size: int) -> bool:
        with contextlib.suppress(OSError):
            return (self._objects / sha256).stat().st_size == size
        return False


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
    """On a host: prepare for a tree `name` of the files in `content`; returns the missing contents."""
    files = [(name, size, changed, sha256) for name, size, changed, sha256 in json.loads(question["content"])]
    root = cache_directory() / "pushed"
    _private(root / "objects")
    incoming = _incoming[question["tree"]] = _Incoming(root, question["name"], files)
    agent.undo.append(incoming.clear)
    return {"missing": incoming.missing(), "free": shutil.disk_usage(root).free, "folder": str(root)}


def write_pieces(_agent: Agent, question: Mapping[str, Any]) -> None:
    """On a host: write `pieces` (SHA-256 of a file, offset, bytes) of a `tree` from one `content`."""
    at = 0
    for sha256, offset, size in question["pieces"]:
        _incoming[question["tree"]].write(sha256, offset, question["content"][at : at + size])
        at += size


def finish_tree(_agent: Agent, question: Mapping[str, Any]) -> str:
    """On a host: put the `tree`, all of which has come, at its place; returns its path."""
    return _incoming.pop(question["tree"]).finish()
