"""On a host: start torchrun, watch it, and end it when the connection closes."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from istbench.base.machine import HOST
from istbench.base.scratch import scratch_folder
from istbench.launch.hosts.action import Agent
from istbench.launch.hosts.relay import CELL, FAILED, FOLDER, GO, SAID
from istbench.launch.processes.orphans import adopt_orphans, kill_descendants
from istbench.launch.torchrun.secret import SECRET

_POLL_S = 0.1
_GRACE_S = 40.0  # torchrun gives its processes thirty seconds; ours need ten for a checkpoint, and five to end
_READS_S = 5.0  # to read its last lines after all its processes have ended
_LAST_LINES = 8
_running: list["_Run"] = []


def start(agent: Agent, question: Mapping[str, Any]) -> None:
    """Start `words` under torchrun as host `rank` of `hosts`, with `slots` processes."""
    run = _Run(agent, question)
    _running.append(run)
    agent.undo.append(run.end)


def go(_agent: Agent, _question: Mapping[str, Any]) -> None:
    """Let rank 0 train, after it has reported its cell."""
    (_running[0].folder / GO).touch()


def end(_agent: Agent, _question: Mapping[str, Any]) -> None:
    """Interrupt the run."""
    for run in _running:
        run.end()


class _Run:
    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self._undo = contextlib.ExitStack()
        self.folder = self._undo.enter_context(scratch_folder())
        self._agent = agent
        self._tail: deque[str] = deque(maxlen=_LAST_LINES)
        self._ended, self._once = threading.Event(), threading.Lock()
        adopt_orphans()  # to find processes that torchrun leaves behind
        options = {
            "nnodes": question["hosts"],
            "node-rank": question["rank"],
            "nproc-per-node": question["slots"],
            "rdzv-endpoint": question["endpoint"],
        }
        torchrun = ["-m", "torch.distributed.run", *(f"--{name}={value}" for name, value in options.items())]
        # torchrun itself would start Python without -P.
        worker = ["--no-python", sys.executable, "-u", "-P", "-m", "istbench"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", *torchrun, *worker, *question["words"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                **os.environ,
                FOLDER: str(self.folder),
                HOST: question["name"],
                SECRET: question["secret"],
            },
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        """Ask torchrun to end; kill it after a grace period."""
        with self._once:
            if not self._ended.is_set():
                with contextlib.suppress(OSError):
                    self._process.terminate()
                if not self._ended.wait(_GRACE_S):
                    kill_descendants()
                    self._ended.wait(_GRACE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tail.append(line.decode(errors="replace").rstrip())

    def _watch(self) -> None:
        said = _Follower(self.folder / SAID)
        cell = self.folder / CELL
        told = False
        while self._process.poll() is None:
            time.sleep(_POLL_S)
            self._pass_on(said)
            if not told and cell.exists():
                self._agent.say({"cell": cell.read_text()})
                told = True
        kill_descendants()
        self._reader.join(_READS_S)
        self._pass_on(said)
        failure = None
        with contextlib.suppress(OSError, ValueError):
            failure = json.loads((self.folder / FAILED).read_text())
        self._undo.close()
        self._ended.set()
        frame = {"ended": self._process.returncode, "failure": failure, "tail": list(self._tail)}
        self._agent.say(frame)

    def _pass_on(self, said: "_Follower") -> None:
        for line in said.lines():
            self._agent.say({"said": line})


class _Follower:
    """Reads whole new lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def lines(self) -> list[str]:
        """The new lines."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._at += len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n") if newline else []
