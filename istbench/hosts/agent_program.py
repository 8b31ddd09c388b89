"""Sent to a host over ssh and run by a Python there, which need not have istbench: answers until nobody asks.

Questions come as lines of JSON with an `id`, what to `do`, and the rest; answers go out as lines of JSON after a
mark, as what a shell's start-up files print comes before them. After a line with `bytes` come that many bytes of a
file, as they are. When questions end, or stay away, all that was started ends.
"""

# Old Pythons are to get as far as saying that they are too old: nothing here that 3.7 cannot read.
from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

MARK = "istbench> "
SILENCE_S = 60.0
INSTALLED = "installed"


class Agent:
    """Answers to whoever asks.

    Attributes:
        undo: what is to be called at the end, in whichever way it comes.
    """

    def __init__(self, out: TextIO) -> None:
        self.undo: list[Callable[[], None]] = []
        self._out, self._lock = out, threading.Lock()

    def say(self, frame: dict[str, Any], content: bytes = b"") -> None:
        """Send one frame, and the bytes after it; where nobody hears it any more, nothing."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._out.write(MARK + json.dumps(frame) + "\n")
            self._out.flush()
            if content:
                self._out.buffer.write(content)
                self._out.flush()

    def answer(self, asked: dict[str, Any]) -> None:
        """Do what is asked for and say what came of it."""
        try:
            found = self._action(asked["do"])(self, asked)
        except Exception as error:
            self.say({"id": asked["id"], "error": getattr(error, "strerror", None) or str(error) or repr(error)})
        else:
            if isinstance(found, bytes):
                self.say({"id": asked["id"], "bytes": len(found)}, found)
            else:
                self.say({"id": asked["id"], "answer": found})

    def _action(self, name: str) -> Callable[[Agent, dict[str, Any]], Any]:
        own: dict[str, Any] = {"facts": facts, "clock": clock, "install": install}
        if name in own:
            return own[name]
        from istbench.hosts.remote import ACTIONS  # not at the top: the host may have no istbench

        return ACTIONS[name]

    def end(self) -> None:
        """Take back all that was started."""
        for undo in self.undo:
            with contextlib.suppress(Exception):
                undo()


def clock(_agent: Agent, _asked: dict[str, Any]) -> float:
    """The time, in seconds since 1970."""
    return time.time()


def facts(_agent: Agent, asked: dict[str, Any]) -> dict[str, Any]:
    """What this host is and has: what `Facts` of `check` holds."""
    with contextlib.suppress(OSError):
        os.chdir(asked["folder"])
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "istbench": _istbench(),
        "torch": _version("torch"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "gpus": _gpus(),
        "folder": str(Path.cwd()),
        "missing": [path for path in asked["paths"] if not Path(path).exists()],
        "shared": Path(asked["out"], asked["marker"]).exists(),
        "free": _free(Path(asked["out"])),
        "free_scratch": _free(Path(tempfile.gettempdir())),
        "addresses": _addresses(),
    }


def install(agent: Agent, question: dict[str, Any]) -> str:
    """Install the wheel in `content` with its requirements in a virtual environment of its own; returns its Python.

    The environment is complete once the file `python` beside it exists, which runs its Python.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = os.environ.get("ISTBENCH_CACHE") or Path(caches, "istbench")
    folder = Path(cache, INSTALLED, question["key"])
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    python = folder / "python"
    with (folder / "lock").open("w") as lock:
        importlib.import_module("fcntl").flock(lock, 2)  # LOCK_EX: hosts may share this directory
        if not python.exists():
            own = folder / "venv"
            shutil.rmtree(str(own), ignore_errors=True)
            wheel = folder / question["name"]
            wheel.write_bytes(question["content"])
            _run(agent, [sys.executable, "-m", "venv", *question["venv"], str(own)])
            extras = "[{}]".format(",".join(question["extras"])) if question["extras"] else ""
            words = ["install", "--quiet", "--disable-pip-version-check", str(wheel) + extras, *question["also"]]
            _run(agent, [str(own / "bin" / "python"), "-m", "pip", *words])
            new = folder / "python.new"
            new.write_text('#!/bin/sh\nexec "{}" "$@"\n'.format(own / "bin" / "python"))
            new.chmod(0o700)
            new.replace(python)
    return str(python)


def _run(agent: Agent, command: list[str]) -> None:
    """Run a command that ends with this program.

    Raises:
        OSError: with its last line, if it fails.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    agent.undo.append(process.kill)
    printed = process.communicate()[0].decode(errors="replace").strip().splitlines()
    if process.returncode:
        errors = [line for line in printed if line.startswith("ERROR")] or printed or ["it prints nothing"]
        raise OSError("`{}` fails: {}".format(" ".join(command[1:4]), errors[-1]))


def _machine() -> str:
    """What tells this machine from others: two containers of one have networks of their own."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return " ".join(parts) or socket.gethostname()


def _istbench() -> str | None:
    try:
        return importlib.import_module("istbench").__version__
    except ImportError:
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.import_module("importlib.metadata").version(package)
    except ImportError:
        return None


def _gpus() -> int:
    with contextlib.suppress(OSError):
        return len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    return 0


def _free(path: Path) -> int | None:
    """Bytes free where `path` is or would be made; None where it cannot be."""
    path = Path.cwd() / path
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(str(path)).free if path.is_dir() and os.access(str(path), os.W_OK) else None


def _addresses() -> list[str]:
    """This host's IPv4 addresses that others may reach it by: first the one that ssh came to."""
    found = []
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4 and ":" not in words[2]:
        found.append(words[2])
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    request = name.encode()[:15].ljust(256, b"\0")
                    found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24]))
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def main() -> None:
    """Answer what is asked on standard input, until it ends or is silent."""
    agent = Agent(sys.stdout)
    # Its `put` may be called from a signal's handler.
    questions: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for line in sys.stdin.buffer:
                asked = json.loads(line) if line.strip() else {}
                if "bytes" in asked:
                    asked["content"] = sys.stdin.buffer.read(asked["bytes"])
                questions.put(asked)
        finally:
            questions.put(None)

    def leave(_number: int, _frame: Any) -> None:
        questions.put(None)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
    threading.Thread(target=read, daemon=True).start()
    agent.say({"hello": list(sys.version_info[:2])})
    while True:
        try:
            asked = questions.get(timeout=SILENCE_S)
        except queue.Empty:
            break
        if asked is None:
            break
        if asked:
            threading.Thread(target=agent.answer, args=(asked,), daemon=True).start()
    agent.end()
    os._exit(0)


if __name__ == "__main__":
    main()
