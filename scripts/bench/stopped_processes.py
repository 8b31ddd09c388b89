"""Stop each process of a run by SIGSTOP in each phase, and measure the seconds until istbench notices.

The processes are the launcher, multiprocessing's fork server and resource tracker, and two workers. A row starts a
small run on this machine, holds it in a phase (held_phases.py) and stops one process. Then it waits for the end of
the command, or for a line that names SIGSTOP. A launcher cannot notice that it stands still: its row continues it
after twice the time-out, and measures from there. The script prints Markdown, each row as soon as it is known. It
needs Linux.

    python scripts/bench/stopped_processes.py --only "fork server, training" --timeout 3    # to try it
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

PLUGIN = Path(__file__).with_name("held_phases.py")
PHASES = ("training", "exchanging", "evaluating", "ending")
PROCESSES = ("launcher", "fork server", "resource tracker", "rank 0", "rank 1")
_STARTS_S = 240.0
_RUN = [
    *("--method", "held", "--workload", "held", "--nodes", "2", "--steps", "32", "--eval-every", "8"),
    *("--checkpoint-every", "0", "--threads", "1"),
]
_CHILDREN = {"fork server": "multiprocessing.forkserver", "resource tracker": "multiprocessing.resource_tracker"}


class Command:
    """A run in `folder`, its lines on standard error with their times, and its processes."""

    def __init__(self, folder: Path, phase: str, timeout_s: float) -> None:
        self._folder = folder
        shutil.copy(PLUGIN, folder)
        (folder / "phase").write_text(phase)
        words = [*_RUN, "--timeout", f"{timeout_s:g}", "--out", str(folder / "out")]
        command = [sys.executable, "-m", "istbench", "run", "--plugin", str(folder / PLUGIN.name), *words]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,  # not the checkout, whose istbench Python would take
        )
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.strip()))

    def held(self) -> bool:
        """Whether all ranks are at the phase."""
        return all((self._folder / f"at-{rank}").exists() for rank in self._at)

    @property
    def _at(self) -> tuple[int, ...]:
        alone = (self._folder / "phase").read_text() in ("evaluating", "ending")
        return (0,) if alone else (0, 1)

    def go_on(self) -> None:
        """Release the ranks."""
        (self._folder / "go").touch()

    def find(self, name: str) -> int:
        """The id of the process called `name`."""
        if name == "launcher":
            return self.process.pid
        if name.startswith("rank"):
            return int((self._folder / f"pid-{name.split()[1]}").read_text())
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes().decode() for child in children}
        return next(child for child, command in commands.items() if _CHILDREN[name] in command)

    def noticed_s(self) -> float | None:
        """When a line named the signal; None before."""
        return next((at for at, line in self.lines if "SIGSTOP" in line), None)

    def end(self) -> None:
        """Kill all processes of the run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until `condition` holds; returns False if it does not within `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def row(name: str, phase: str, timeout_s: float, patience_s: float) -> str:
    """Stop process `name` in `phase`; returns a row of the table."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        command = Command(Path(scratch), phase, timeout_s)
        try:
            if not wait_for(lambda: command.held() or command.process.poll() is not None, _STARTS_S):
                return f"| {name} | {phase} | did not start | | | |"
            stopped = command.find(name)
            os.kill(stopped, signal.SIGSTOP)
            began = time.monotonic()
            command.go_on()
            if name == "launcher":
                time.sleep(2 * timeout_s)
                began = time.monotonic()
                os.kill(stopped, signal.SIGCONT)
            ended = wait_for(lambda: command.process.poll() is not None, patience_s)
            ended_s = f"{time.monotonic() - began:.1f}" if ended else "hung"
            at = command.noticed_s()
            noticed = f"{at - began:.1f}" if at is not None else "-"
            status = "" if command.process.returncode is None else str(command.process.returncode)
            headers = Path(scratch).glob("out/runs/*/run.json")
            header = "".join(json.loads(path.read_text())["status"] for path in headers)
            said = command.lines[-1][1] if command.lines else ""
            return f"| {name} | {phase} | {noticed} | {ended_s} | {status} | {header} | {said} |"
        finally:
            command.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=10.0, help="of the runs, in seconds")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds until a command counts as hung")
    parser.add_argument("--only", help="rows whose name has this text, for example `rank 0, training`")
    arguments = parser.parse_args()
    print("| process | phase | s until a line | s until the end | status | run | last line |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in PROCESSES:
        for phase in PHASES:
            if arguments.only is None or arguments.only in f"{name}, {phase}":
                print(row(name, phase, arguments.timeout, arguments.patience), flush=True)


if __name__ == "__main__":
    main()
