"""The runs that a report is on, by the names that a user gives."""

from pathlib import Path

from istbench.errors import unknown_name
from istbench.results.load import Run


def of_workload(runs: list[Run], workload: str | None, results: Path) -> list[Run]:
    """Those of `runs` that are of `workload`, named with or without its options; all where it is None.

    Raises:
        UserError: where there are none of it.
    """
    if workload is None:
        return runs
    names = {name for run in runs for name in (run.header.workload, run.header.workload_label)}
    if workload not in names:
        raise unknown_name(f"workload in {results}", workload, names)
    return [run for run in runs if workload in (run.header.workload, run.header.workload_label)]
