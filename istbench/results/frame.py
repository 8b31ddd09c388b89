"""Results as pandas data frames, for notebooks and one's own analyses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from istbench.results.load import Run, load_runs
from istbench.results.on_cluster import runs_on_clusters

if TYPE_CHECKING:
    import pandas as pd

    from istbench.cluster.profile import ClusterProfile

_HEADER = ("cell", "status", "workload_label", "data", "method", "method_label", "nodes", "seed", "batch_size")


def evaluations_frame(results: Path, cluster: ClusterProfile | None = None) -> pd.DataFrame:
    """Every evaluation of every readable run under results directory `results`, a row each.

    Columns: what the run was (cell, method, nodes, seed, ...), step, samples, train_s and wall_s in seconds, bytes
    sent and received by the busiest node, train_loss, and a column for each metric. With a `cluster`
    (`istbench.cluster.profile.load_profile`), cluster_s as well: train seconds as replayed there, NaN for a run
    that is unfinished or has no sound trace.

    Raises:
        UserError: where there are no runs.
    """
    import pandas as pd

    runs, _ = load_runs(results)
    rows = [row for run in runs for row in _rows(run)]
    if cluster is not None:
        seconds = _cluster_seconds(runs, cluster)
        for row in rows:
            row["cluster_s"] = seconds.get((row["cell"], row["step"]), math.nan)
    return pd.DataFrame(rows)


def _cluster_seconds(runs: list[Run], cluster: ClusterProfile) -> dict[tuple[object, object], float]:
    """Seconds on the cluster by cell and step."""
    (replayed,), _ = runs_on_clusters(runs, [cluster])
    return {
        (run.header.cell, evaluation.step): seconds
        for run in replayed
        if run.cluster is not None
        for evaluation, seconds in zip(run.curve.evaluations, run.curve.seconds, strict=True)
    }


def _rows(run: Run) -> list[dict[str, object]]:
    header = {name: getattr(run.header, name) for name in _HEADER}
    rows = []
    for evaluation in run.curve.evaluations:
        values = msgspec.structs.asdict(evaluation)
        metrics = values.pop("metrics")
        rows.append({**header, **values, **metrics})
    return rows
