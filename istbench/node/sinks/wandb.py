"""Weights & Biases, offline: a directory for each part of a run, which `wandb sync` uploads."""

import os
from pathlib import Path
from typing import ClassVar

from istbench.node.sinks.base import EvaluationSink, parameters, scalars
from istbench.results.events import Evaluation
from istbench.results.header import Header, Status

_LONGEST_NAME = 128


class WeightsAndBiases(EvaluationSink):
    """Offline runs of Weights & Biases in DIR/wandb. Nothing goes to the network."""

    packages: ClassVar[tuple[str, ...]] = ("wandb",)

    def __init__(self, header: Header, where: str, resumed_at: int | None) -> None:
        super().__init__(header, where, resumed_at)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        Path(where).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=f"istbench-{header.workload}",
            name=header.cell,
            # Each part has the whole curve and an id of its own: a server would mix parts of one id.
            group=header.cell[:_LONGEST_NAME],
            dir=where,
            config=parameters(header),
            mode="offline",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def evaluation(self, evaluation: Evaluation) -> None:
        self._run.log(scalars(evaluation), step=evaluation.step)

    def close(self, status: Status) -> None:
        import wandb

        self._run.finish(exit_code=0 if status == "done" else 1)
        wandb.teardown()  # its own process writes the rest of the file
