"""Temporary folders. A killed process leaves its own behind; the next process that needs one deletes them."""

import contextlib
import fcntl
import functools
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "istbench-run-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_LONGEST_SOCKET = 100  # bytes; the path of a socket has at most 103 (107 on Linux)
_SOCKET = len(f"/{_PREFIX}12345678/listener-12345678")
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


@contextlib.contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[Path]:
    """A new folder for temporary files in `parent`, by default in TMPDIR; removed on exit.

    The first call also deletes the folders of processes that were killed. A lock on the folder tells whether its
    process lives; the system frees the lock of a killed process.
    """
    parent = parent or tempfile.gettempdir()
    _sweep(parent)
    path, lock = _locked_folder(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def socket_parent() -> str:
    """The parent of a `scratch_folder` of sockets, whose paths must be short: TMPDIR, or a shorter one."""
    usual = tempfile.gettempdir()
    fits = (folder for folder in (usual, *_SHORT) if len(os.fsencode(folder)) + _SOCKET <= _LONGEST_SOCKET)
    return next((folder for folder in fits if os.access(folder, os.W_OK | os.X_OK)), usual)


def _locked_folder(parent: str) -> tuple[Path, int]:
    """A new folder in `parent`, and the descriptor with its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process swept the folder at once
            continue
        with contextlib.suppress(OSError):  # a file system without locks; nothing sweeps the folder there
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)  # another process swept the folder before it was locked


@functools.cache
def _sweep(parent: str) -> None:
    """Delete the folders in `parent` that this user's killed processes left."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _sweep_one(entry.path)


def _sweep_one(path: str) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
