"""A report: the tables and pictures of a results directory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from istbench.errors import UserError, unknown_name
from istbench.report.groups import Group, group_runs
from istbench.report.table import Table
from istbench.report.tables import comparison
from istbench.results.load import load_runs


@dataclass(frozen=True, kw_only=True)
class Report:
    """tables: one for each set of runs that may be compared. problems: a line for each unreadable run.

    pictures: the files drawn, PNG and SVG.
    """

    tables: tuple[Table, ...]
    problems: tuple[str, ...]
    pictures: tuple[Path, ...]


def build_report(
    results: Path,
    *,
    baseline: str = "ddp",
    workload: str | None = None,
    cells: Iterable[str] | None = None,
    pictures: bool = True,
) -> Report:
    """The report on results directory `results`; pictures are drawn into `results/report`.

    baseline: method, or method with its options as the table shows it, that speed-ups are against.
    workload: only this one, with or without its options. cells: only those of these names.

    Raises:
        UserError: where there are no runs to report on, or the pictures cannot be written.
    """
    runs, problems = load_runs(results, cells)
    if workload is not None:
        names = {run.header[name] for run in runs for name in ("workload", "workload_label")}
        if workload not in names:
            raise unknown_name(f"workload in {results}", workload, names)
        runs = [run for run in runs if workload in (run.header["workload"], run.header["workload_label"])]
    groups = group_runs(runs, baseline)
    return Report(
        tables=tuple(comparison(group, baseline) for group in groups),
        problems=tuple(problems),
        pictures=tuple(_draw_all(groups, results / "report") if pictures else ()),
    )


def _draw_all(groups: Sequence[Group], directory: Path) -> list[Path]:
    from istbench.report.draw import draw
    from istbench.report.plots import metric_over_time, time_by_nodes

    paths: list[Path] = []
    try:
        for group in groups:
            if not group.entries:
                continue
            directory.mkdir(parents=True, exist_ok=True)
            paths += draw(metric_over_time(group), directory / f"{group.stem}-over-time")
            if group.levels:
                paths += draw(time_by_nodes(group), directory / f"{group.stem}-time-to-target")
    except OSError as error:
        raise UserError(
            f"cannot write pictures to {directory}: {error.strerror or error}; --no-pictures leaves them out"
        ) from None
    return paths
