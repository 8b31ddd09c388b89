"""The program that a Python on a host runs, sent over ssh; it answers requests and needs no istbench there.

A request is a line of JSON with an `id`, an action to `do`, and its arguments. `of` names the module with the
actions that this program lacks; they need istbench there. An answer is a line of JSON after a mark, because start-
up files of a shell may print before it. After a line with `bytes` follow that many raw bytes. The program ends,
with all that it started, when requests end or stay away.
"""

# Python 3.7 must be able to compile this file, so that an old Python can report its version.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

MARK = "istbench> "
SILENCE_S = 60.0
INSTALLED = "installed"
_LONGEST_ERROR = 4096


class Agent:
    """Answers requests by `actions`, and by the `ACTIONS` of the module that a request names.

    An action takes this agent and the request, and returns bytes, or a value for JSON. Its error is an answer too.

    Attributes:
        undo: functions to call at the end.
    """

    def __init__(self, out: TextIO, actions: Mapping[str, Callable[[Agent, dict[str, Any]], Any]]) -> None:
        self.undo: list[Callable[[], None]] = []
        self._actions = actions
        self._out, self._lock = out, threading.Lock()

    def say(self, frame: dict[str, Any], content: bytes = b"") -> None:
        """Send one frame, and the bytes after it; does nothing if the connection is closed."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._out.write(MARK + json.dumps(frame, ensure_ascii=False) + "\n")
            self._out.flush()
            if content:
                self._out.buffer.write(content)
                self._out.flush()

    def answer(self, question: dict[str, Any]) -> None:
        """Run the action of a request, and send its result or its error."""
        try:
            do = question["do"]
            action = self._actions.get(do) or importlib.import_module(question["of"]).ACTIONS.get(do)
            if action is None:
                raise OSError(
                    f"the istbench there is of another version and cannot {do}; install the same on every host"
                )
            found = action(self, question)
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error) or repr(error)
            self.say({"id": question["id"], "error": str(reason)[:_LONGEST_ERROR]})
        else:
            if isinstance(found, bytes):
                self.say({"id": question["id"], "bytes": len(found)}, found)
            else:
                self.say({"id": question["id"], "answer": found})

    def end(self) -> None:
        """End all that was started."""
        for undo in self.undo:
            with contextlib.suppress(Exception):
                undo()


_is_there = os.path.exists  # False also where nobody may look


def facts(_agent: Agent, question: dict[str, Any]) -> dict[str, Any]:
    """The `HostFacts` of `check`."""
    with contextlib.suppress(OSError):
        os.chdir(question["folder"])
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "istbench": _istbench(),
        "torch": _version("torch"),
        "cores": _cores(),
        "gpus": _gpus(),
        "folder": str(Path.cwd()),
        "missing": [path for path in question["paths"] if not _is_there(path)],
        "shared": Path(question["out"], question["marker"]).exists(),
        "free": _free(Path(question["out"])),
        "free_scratch": _free(Path(tempfile.gettempdir())),
        "addresses": _addresses(),
    }


def install(agent: Agent, question: dict[str, Any]) -> str:
    """Install the wheel in `content` with its requirements in a virtual environment of its own; returns its Python.

    The environment is complete once the file `python` beside it exists, which runs its Python.
    """
    import fcntl  # Windows has none

    if list(sys.version_info[:2]) != question["python"]:
        here, there = (".".join(map(str, one)) for one in (question["python"], sys.version_info[:2]))
        raise OSError(f"its Python is {there}, and {here} here; name another by --hosts-python")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = os.environ.get("ISTBENCH_CACHE") or Path(caches, "istbench")
    folder = Path(cache, INSTALLED, question["key"])
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    python = folder / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # hosts may share this directory
        if not python.exists():
            own = folder / "venv"
            shutil.rmtree(str(own), ignore_errors=True)
            wheel = folder / question["name"]
            wheel.write_bytes(question["content"])
            _run(agent, [sys.executable, "-P", "-m", "venv", str(own)])
            extras = "[{}]".format(",".join(question["extras"])) if question["extras"] else ""
            words = ["install", "--quiet", "--disable-pip-version-check", str(wheel) + extras, *question["also"]]
            _run(agent, [str(own / "bin" / "python"), "-P", "-m", "pip", *words])
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
        raise OSError("`{}` fails: {}".format(" ".join(command[2:5]), errors[-1]))


def _machine() -> str:
    """Identifies this machine; two containers of one machine have different network namespaces."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return " ".join(parts) or socket.gethostname()


def _istbench() -> str | None:
    try:
        import istbench
    except ImportError:
        return None
    return istbench.__version__


def _version(package: str) -> str | None:
    try:
        from importlib.metadata import version

        return version(package)
    except ImportError:
        return None


def _cores() -> int:
    """The cores that a run has here, within a CPU quota; those of the machine where istbench cannot tell."""
    try:
        from istbench.base.machine import cores

        return cores()
    except ImportError:
        return os.cpu_count() or 1


def _gpus() -> int:
    with contextlib.suppress(OSError):
        return len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    return 0


def _free(path: Path) -> int | None:
    """Free bytes at `path` or its nearest existing parent; None if it is not writable."""
    path = Path.cwd() / path
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(str(path)).free if path.is_dir() and os.access(str(path), os.W_OK) else None


def _addresses() -> list[str]:
    """IPv4 addresses of this host; first the one of the ssh connection."""
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
    """Answer requests on standard input, until it ends or is silent."""
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]  # names may not be UTF-8
    agent = Agent(sys.stdout, {"facts": facts, "clock": lambda *_: time.time(), "install": install})
    # Its `put` may be called from a signal's handler.
    questions: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for line in sys.stdin.buffer:
                question = json.loads(line) if line.strip() else {}
                if "bytes" in question:
                    question["content"] = sys.stdin.buffer.read(question["bytes"])
                questions.put(question)
        finally:
            questions.put(None)

    def leave(_number: int, _frame: Any) -> None:
        questions.put(None)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
    threading.Thread(target=read, daemon=True).start()
    agent.say({"python": list(sys.version_info[:2])})
    while True:
        try:
            question = questions.get(timeout=SILENCE_S)
        except queue.Empty:
            break
        if question is None:
            break
        if question:
            threading.Thread(target=agent.answer, args=(question,), daemon=True).start()
    agent.end()
    os._exit(0)


if __name__ == "__main__":
    main()
