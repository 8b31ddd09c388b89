"""Results as pandas data frames, and in files that others can keep: a row for each evaluation."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from istbench.base.csv_text import csv_text
from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import UserError, shown
from istbench.base.files import write_errors, writing_whole
from istbench.results.load import Run, load_runs
from istbench.results.metrics import without_clashes
from istbench.results.on_cluster import runs_on_clusters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

    from istbench.cluster.profile import ClusterProfile


_HEADER = ("cell", "status", "workload_label", "data", "method", "method_label", "nodes", "seed", "batch_size")


def runs_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """A row for each of `runs`.

    Columns: fields of the run (cell, status, method, nodes, seed, ...) and its metric; step, samples, train_s and
    wall_s in seconds, bytes sent and received by the busiest node, all of its last evaluation; the `final` and the
    `best` value of the metric.
    """
    import pandas as pd

    return pd.DataFrame([_run_row(run) for run in runs])


def write_evaluations(results: Path, path: Path, clusters: Sequence[ClusterProfile] = ()) -> None:
    """Write `frame_of` the runs in `results` to `path`, CSV, with a column "cluster_s NAME" for each cluster.

    Raises:
        UserError: if there are no runs, or the file cannot be written.
    """
    frame = frame_of(load_runs(results)[0], {f"cluster_s {cluster.name}": cluster for cluster in clusters})
    text = csv_text(frame.to_dict("records"), ".6g")
    with write_errors(path, "choose another folder"), writing_whole(path) as file:
        file.write(text.encode())


def frame_of(runs: Sequence[Run], clusters: Mapping[str, ClusterProfile] | None = None) -> pd.DataFrame:
    """A row for each evaluation of each of `runs`.

    Columns: fields of the run (cell, method, nodes, seed, ...), the name of its metric and whether lower is better,
    step, samples, train_s and wall_s in seconds, bytes sent and received by the busiest node, train_loss, and a
    column for each metric. Each of `clusters` adds a column of its name: the train seconds replayed there, or NaN
    for a run that is unfinished or has no sound trace.
    """
    import pandas as pd

    rows = [row for run in runs for row in _rows(run)]
    on_clusters = runs_on_clusters(runs, list(clusters.values()))[0] if clusters else []  # it reads all traces
    for name, replayed in zip(clusters or (), on_clusters, strict=True):
        seconds = {
            (run.header.cell, evaluation.step): seconds
            for run in replayed
            if run.cluster is not None
            for evaluation, seconds in zip(run.curve.evaluations, run.curve.seconds, strict=True)
        }
        for row in rows:
            row[name] = seconds.get((row["cell"], row["step"]), math.nan)
    return pd.DataFrame(rows)


def _run_row(run: Run) -> dict[str, Any]:
    last = msgspec.structs.asdict(run.curve.evaluations[-1]) if run.curve.evaluations else {}
    last.pop("metrics", None)
    return {**_of_run(run), **last, "final": run.curve.final(), "best": run.curve.best()}


def _of_run(run: Run) -> dict[str, Any]:
    own = run.curve.metric
    header = {name: getattr(run.header, name) for name in _HEADER}
    return {**header, "metric": own.name, "lower_is_better": own.lower_is_better}


def _rows(run: Run) -> list[dict[str, Any]]:
    header, rows = _of_run(run), []
    for evaluation in run.curve.evaluations:
        values = msgspec.structs.asdict(evaluation)
        metrics = values.pop("metrics")
        rows.append({**header, **values, **without_clashes(metrics, {*header, *values})})
    return rows


FORMATS = ("jsonl", "parquet")
_MOST_BYTES = 2**34
_Row = dict[str, str | int | float | bool | None]


def write_rows(frame: pd.DataFrame, path: Path) -> None:
    """Write `frame`, such as `frame_of` gives, to `path` in the format of its ending.

    Raises:
        UserError: for another ending, without the package for Parquet, and if the file cannot be written.
    """
    ending = _ending(path)
    with write_errors(path), writing_whole(path) as file:
        if ending == "parquet":
            frame.to_parquet(file, index=False)
        else:
            for row in frame.to_dict("records"):
                file.write(msgspec.json.encode({str(name): _plain(value) for name, value in row.items()}) + b"\n")


def read_rows(path: str | Path) -> pd.DataFrame:
    """The rows of a file of `istbench export --format jsonl` or `parquet`.

    Raises:
        UserError: for another ending, without the package for Parquet, and for a file without such rows.
    """
    import pandas as pd

    path = Path(path)
    if _ending(path) == "parquet":
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from None
    lines = read_bytes(path, "rows of `istbench export`", _MOST_BYTES).split(b"\n")
    rows = [
        decode_json(line, _Row, f"{path}:{number}", "export it again")
        for number, line in enumerate(lines, start=1)
        if line
    ]
    return pd.DataFrame(rows)


def _ending(path: Path) -> str:
    ending = path.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise UserError(f"{shown(str(path))} ends in none of .{', .'.join(FORMATS)}")
    if ending == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet needs pyarrow, which is not installed: pip install pyarrow; or use jsonl")
    return ending


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
