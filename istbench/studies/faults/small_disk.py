"""A file system of its own for a run directory, which a fault fills (Linux, root)."""

import os
import shutil
from pathlib import Path

from istbench.base.files import sync
from istbench.launch.lab.namespaces import lacked, run

_BYTES = 2**30  # a page takes memory only once it is written


def why_not() -> str:
    """Why this process cannot make one; empty if it can."""
    if os.geteuid() != 0:
        return "a full disk needs root, which mounts a file system for the run"
    if lacked("CAP_SYS_ADMIN"):
        return "a full disk needs root with CAP_SYS_ADMIN, which mounts a file system for the run"
    return "" if shutil.which("mount") else "a full disk needs the program mount"


class SmallDisk:
    """A file system in memory at `path`. At the end its files take its place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "SmallDisk":
        if self._path.is_mount():  # a process that was killed left it
            _run("umount", str(self._path))
        self._path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(self._path))
        return self

    def fill(self) -> None:
        """Leave no free page: the file system gets the size of its files."""
        state = os.statvfs(self._path)
        self._resize((state.f_blocks - state.f_bfree) * state.f_frsize)

    def free(self) -> None:
        """Undo `fill`."""
        self._resize(_BYTES)

    def _resize(self, size: int) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self._path))

    def __exit__(self, *_: object) -> None:
        kept = self._path.parent.with_name(f"{self._path.name}.tmp")  # `runs` has runs alone
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self._path, kept, symlinks=True)
        _run("umount", str(self._path))
        shutil.rmtree(self._path)
        kept.rename(self._path)
        sync(self._path.parent)


def _run(*command: str) -> None:
    run(list(command), "fill a disk")
