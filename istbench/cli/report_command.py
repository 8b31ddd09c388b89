"""`istbench report`: tables and pictures of the runs in a results directory."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from istbench.cli.options import PageType, ResultsType, cluster_option, report_options
from istbench.cluster.profile import ClusterProfile

if TYPE_CHECKING:
    from istbench.report.output import Format


@click.command("report")
@click.argument("results", default="results", type=ResultsType())
@report_options
@cluster_option
@click.option(
    "--html",
    "page",
    type=PageType(),
    metavar="FILE",
    help="Also write one self-contained page with answers, tables, charts and settings.",
)
def command(
    results: Path,
    output_format: "Format",
    workload: str | None,
    metric: str | None,
    levels: tuple[float, ...],
    baseline: str,
    pictures: bool,
    all_tables: bool,
    explain: bool,
    cluster: ClusterProfile,
    page: Path | None,
) -> None:
    """Print tables and draw pictures of the runs in a results directory.

    First as timed on the machine they ran on, then as replayed on --cluster; see also `istbench replay`.
    """
    from istbench.cli.replaying import replaying
    from istbench.cli.show import show_report
    from istbench.report.page import PAGE_BANDWIDTHS
    from istbench.report.report import build_report

    with replaying() as tell:
        report = build_report(
            results,
            baseline=baseline,
            workload=workload,
            metric=metric,
            levels=levels,
            cluster=cluster,
            bandwidths=() if page is None else PAGE_BANDWIDTHS,
            tell=tell,
        )
    show_report(
        report,
        results,
        output_format=output_format,
        pictures=pictures,
        page=page,
        explain=explain,
        all_tables=all_tables,
    )
