"""On a host: start torchrun, watch it, and end it when the connection closes."""

import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from istbench.base.options.texts import message_of
from istbench.base.scratch import scratch_folder
from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.run_folder import FOLDER, watch
from istbench.launch.processes.orphans import adopt_orphans, kill_descendants

_GRACE_S = 40.0  # torchrun gives its processes thirty seconds: twenty to stop, and five to end
_READS_S = 5.0  # to read its last lines after all its processes have ended
_LAST_LINES = 8
_running: list["_Run"] = []


def start(agent: Agent, question: Mapping[str, Any]) -> None:
    """Start `words` under torchrun with its options `torchrun`, in their `environment`."""
    run = _Run(agent, question)
    _running.append(run)
    agent.undo.append(run.end)


def mark(_agent: Agent, question: Mapping[str, Any]) -> None:
    """Make the file `name` in the folder of the run."""
    (_running[0].folder / question["name"]).touch()


def end(_agent: Agent, question: Mapping[str, Any]) -> None:
    """Interrupt the run; kill it after `grace_s`, if that is not None."""
    for run in _running:
        run.end(question["grace_s"] or _GRACE_S)


class _Run:
    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        self._undo = contextlib.ExitStack()
        self.folder = self._undo.enter_context(scratch_folder())
        self._agent = agent
        self._tail: deque[str] = deque(maxlen=_LAST_LINES)
        self._ended, self._once = threading.Event(), threading.Lock()
        adopt_orphans()  # to find processes that torchrun leaves behind
        options = [f"--{name}={value}" for name, value in question["torchrun"].items()]
        # torchrun itself would start Python without -P.
        worker = ["--no-python", sys.executable, "-u", "-P", "-m", "istbench"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "torch.distributed.run", *options, *worker, *question["words"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, FOLDER: str(self.folder), **question["environment"]},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self, grace_s: float = _GRACE_S) -> None:
        """Ask torchrun to end; kill it after a grace period."""
        with self._once:
            if not self._ended.is_set():
                with contextlib.suppress(OSError):
                    self._process.terminate()
                if not self._ended.wait(grace_s):
                    kill_descendants()
                    self._ended.wait(_GRACE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tail.append(message_of(line.decode(errors="replace").rstrip()))

    def _watch(self) -> None:
        failure = watch(self.folder, self._agent.say, self._lives)
        self._undo.close()
        self._ended.set()
        self._agent.say({"ended": self._process.returncode, "failure": failure, "tail": list(self._tail)})

    def _lives(self) -> bool:
        """Whether torchrun runs; afterwards its processes have ended too."""
        if self._process.poll() is None:
            return True
        kill_descendants()
        self._reader.join(_READS_S)
        return False
