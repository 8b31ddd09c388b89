"""A backend in forty lines: each cell runs as a pod, which shares nothing but a folder with this process.

Here a pod is a run on this machine.
"""

from dataclasses import dataclass
from pathlib import Path

from istbench.launch.backends.backend import Backend, BackendOption, Outcome
from istbench.launch.backends.here import Here
from istbench.results.store import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Pods(Backend):
    """Pods that keep the results in `volume`."""

    chosen_by = "--pods"
    choices = (BackendOption(flag="--pods", kind=Path, help="Run each cell as a pod."),)
    volume: Path

    @classmethod
    def chosen(cls, given):
        """A volume of the user, if one is given."""
        return cls(volume=given["pods"]) if given["pods"] else None

    def run(self, cells, out, again, screen):
        """Run one pod for each cell, and link the results to `out`."""
        for request in cells:
            before = set(self.volume.glob("runs/*"))
            (pod,) = Here().run([request], self.volume, again, screen)
            name = next(path.name for path in self.volume.glob("runs/*") if path not in before)
            run = RunDirectory.of(out, name)
            run.path.parent.mkdir(parents=True, exist_ok=True)
            run.path.symlink_to(self.volume / "runs" / name)
            screen.note(f"pod of {name} has ended")
            yield Outcome(cell=name, run=run, failure=pod.failure)
