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
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from istbench.base.cache import cache_directory
from istbench.base.files import writing_whole
from istbench.launch.hosts.agent_program import Agent

PART = 1 << 20
LISTS_S = 7200.0
"""Time for the first listing, which reads all data."""
File = tuple[str, int, int, str]
"""A file of a tree: name in it (empty if the tree is one file), bytes, time of change in ns since 1970, SHA-256."""


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
