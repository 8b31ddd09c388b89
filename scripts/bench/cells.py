"""Cells for a script: one run by `istbench run`, and the runs of a results directory that a study counts."""

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from istbench.cli import main
from istbench.errors import UserError, is_divergence
from istbench.results.load import Run, load_runs


def run_cell(*arguments: object, out: Path | None = None) -> dict[str, Any]:
    """The result of `istbench run` with these arguments. `out` keeps its results directory.

    The command runs in this process, and its workers in others, as always. So they share one fork server.
    """
    printed, said = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed), redirect_stderr(said):
        try:
            main(["run", "--json", "--out", str(out or folder), *map(str, arguments)])
        except SystemExit as ended:
            if ended.code:
                raise SystemExit(said.getvalue()) from None
    result: dict[str, Any] = json.loads(printed.getvalue())
    return result


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
