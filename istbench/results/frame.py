"""Results as pandas data frames, for notebooks and one's own analyses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from istbench.results.load import Run, load_runs

if TYPE_CHECKING:
    import pandas as pd

_HEADER = ("cell", "status", "workload_label", "data", "method", "method_label", "nodes", "seed", "batch_size")


def evaluations_frame(results: Path) -> pd.DataFrame:
    """Every evaluation of every readable run under results directory `results`, a row each.

    Columns: what the run was (cell, method, nodes, seed, ...), step, samples, train_s and wall_s in seconds, bytes
    sent and received by the busiest node, train_loss, and a column for each metric.

    Raises:
        UserError: where there are no runs.
    """
    import pandas as pd

    runs, _ = load_runs(results)
    return pd.DataFrame([row for run in runs for row in _rows(run)])


def _rows(run: Run) -> list[dict[str, object]]:
    header = {name: run.header[name] for name in _HEADER}
    rows = []
    for evaluation in run.curve.evaluations:
        values = {name: value for name, value in vars(evaluation).items() if name != "metrics"}
        rows.append({**header, **values, **evaluation.metrics})
    return rows
