"""Cells for a script: one run by `istbench run`, and the runs of a results directory that a study counts."""

import io
import json
import math
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from istbench.base.errors import UserError, is_divergence
from istbench.cli import main
from istbench.report.phrases import checks_line, doubt_lines, unlike_lines
from istbench.results.load import Run, load_runs
from istbench.results.stats import SeedMedian


def run_cell(*arguments: object, out: Path | None = None) -> dict[str, Any]:
    """The result of `istbench run` with these arguments. `out` keeps its results directory."""
    with tempfile.TemporaryDirectory() as folder:
        printed = run_command("run", "--json", "--out", out or folder, *arguments)
    result: dict[str, Any] = json.loads(printed)
    return result


def run_command(*words: object) -> str:
    """The output of `istbench` with these words.

    The command runs in this process, and its workers in others, as always. So they share one fork server.
    """
    printed, said = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(said):
        try:
            main(list(map(str, words)))
        except SystemExit as ended:
            if ended.code:
                raise SystemExit(said.getvalue()) from None
    return printed.getvalue()


def cautions_of(on_clusters: Sequence[Sequence[Run]]) -> list[str]:
    """Warnings about the replays of runs: their errors in a lab, and recordings on a busy machine.

    on_clusters: the same runs on each of several links.
    """
    times = [run.cluster for there in on_clusters for run in there if run.cluster is not None]
    doubts = [(run.header.cell, run.doubt) for run in on_clusters[0] if run.doubt]
    return [*checks_line(times), *unlike_lines(times), *doubt_lines(doubts, len(on_clusters[0]))]


def counted_runs(results: Path) -> tuple[list[Run], list[Run]]:
    """The finished and the diverged runs in `results`. A study counts a diverged run as a miss.

    Raises:
        UserError: if another run has not finished: a study without it would leave out what went wrong.
    """
    runs, problems = load_runs(results)
    diverged = [run for run in runs if is_divergence(run.header.error)]
    open_runs = [run.header.cell for run in runs if not run.done and run not in diverged]
    if problems or open_runs:
        first = problems[0] if problems else f"{open_runs[0]} has not finished"
        raise UserError(f"{first}; run the suite again, which resumes, or delete the run's directory")
    return [run for run in runs if run.done], diverged


def with_ends(name: str, found: SeedMedian) -> dict[str, float | None]:
    """Fields of a CSV for a median with its interval; a miss is empty."""
    values = {name: found.median, f"{name}_low": found.low, f"{name}_high": found.high}
    return {field: value if math.isfinite(value) else None for field, value in values.items()}
