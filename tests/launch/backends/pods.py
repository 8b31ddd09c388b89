"""A backend in forty lines: each cell runs as a pod, a process that shares nothing but a folder with this one."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from istbench.base.errors import RunFailed
from istbench.launch.backends.backend import Backend, BackendOption, Kind, Outcome
from istbench.results.store import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Pods(Backend):
    """Pods that keep the results in `volume`."""

    chosen_by = "--pods"
    volume: Path

    def run(self, cells, out, again, screen):
        """Run one pod for each cell, and link the results to `out`."""
        for request in cells:
            before = set(self.volume.glob("runs/*"))
            words = [*request.arguments(), f"--out={self.volume}", *(["--again"] if again else [])]
            pod = subprocess.run([sys.executable, "-m", "istbench", *words], capture_output=True, text=True)
            name = next(path.name for path in self.volume.glob("runs/*") if path not in before)
            run = RunDirectory.of(out, name)
            run.path.parent.mkdir(parents=True, exist_ok=True)
            run.path.symlink_to(self.volume / "runs" / name)
            screen.note(f"pod of {name} has ended")
            failure = RunFailed(pod.stderr.splitlines()[-1]) if pod.returncode else None
            yield Outcome(cell=name, run=run, failure=failure)


KIND = Kind(
    options=(BackendOption(flag="--pods", name="pods", kind=Path, help="Run each cell as a pod."),),
    make=lambda given: Pods(volume=given["pods"]) if given["pods"] else None,
)
