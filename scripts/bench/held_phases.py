"""A plug-in for `fault_table.py`: `held`, a workload and a method with a phase in which a fault can hit.

The script copies this file into the folder of a run. A file `phase` in that folder names the phase. Every rank
writes `at-RANK` at the phase and waits for a file `go`; after the phase it writes `past-RANK`. Training and
evaluating then last a few seconds longer. The other phases send tensors, and the script slows the links meanwhile.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.methods.ist import IndependentSubnetTraining
from istbench.workloads.base import Batch, Workload
from istbench.workloads.toy import Toy

FOLDER = Path(__file__).parent
WORKS_S, WAITS_S = 4.0, 120.0
STEPS = {
    **{"training": 17, "exchanging": 19, "assembling": 23, "evaluating": 23, "checkpointing": 23},
    "ending": 31,  # the last evaluation
}
"""By phase, the local step in which, or after which, the phase is held."""

_at = {"step": -1, "rank": 0}


@contextmanager
def _held(phase: str) -> Iterator[None]:
    """Inside is `phase`. It is held once if the script requests it."""
    asked, at = FOLDER / "phase", FOLDER / f"at-{_at['rank']}"
    held = _at["step"] == STEPS[phase] and asked.exists() and asked.read_text() == phase and not at.exists()
    if held:
        at.touch()
        until = time.monotonic() + WAITS_S
        while not (FOLDER / "go").exists() and time.monotonic() < until:
            time.sleep(0.05)
        if phase in ("training", "evaluating", "ending"):
            until = time.monotonic() + WORKS_S
            while time.monotonic() < until:
                time.sleep(0.05)
    yield
    if held and phase != "checkpointing":  # its tensors are sent after this
        _past()


def _past() -> None:
    (FOLDER / f"past-{_at['rank']}").touch()


class Held(Toy):
    """The toy workload; rank 0 alone evaluates."""

    name = "held"
    metrics_are_means = False

    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        with _held("evaluating"), _held("ending"):
            return super().evaluate(model, batches)


class HeldSubnetTraining(IndependentSubnetTraining):
    """Independent Subnet Training."""

    name = "held"

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        super().setup(model, workload, fabric)
        fabric.recorder.finished = True  # no trace: its replay would take longer than the run
        _at["rank"] = fabric.rank
        (FOLDER / f"pid-{fabric.rank}").write_text(str(os.getpid()))

    def step(self, batch: Batch) -> Tensor:
        _at["step"] = self.local_step
        if self.local_step > STEPS["checkpointing"]:
            _past()
        with _held("training"):
            return super().step(batch)

    def close_round(self) -> None:
        with _held("exchanging"):
            super().close_round()

    def assemble(self) -> nn.Module | None:
        with _held("assembling"):
            return super().assemble()

    def state_dict(self) -> dict[str, Any]:
        with _held("checkpointing"):
            return super().state_dict()
