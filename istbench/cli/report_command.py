"""`istbench report`: tables and pictures of the runs in a results directory."""

from pathlib import Path
from typing import Any

import click

from istbench.cli.options import (
    PAGE,
    RESULTS,
    cluster_option,
    example_option,
    option,
    report_options,
    results_and_pictures,
    take_shown,
)
from istbench.cluster.profile import ClusterProfile


@click.command("report")
@click.argument("results", default="results", type=RESULTS)
@example_option
@report_options
@cluster_option
@option(
    "--html",
    "Also write one self-contained page with answers, tables, charts and settings.",
    PAGE,
    name="page",
    metavar="FILE",
)
def command(
    results: Path,
    example: bool,
    pictures: bool,
    cluster: ClusterProfile,
    page: Path | None,
    **given: Any,
) -> None:
    """Print tables and draw pictures of the runs in a results directory.

    First as timed on the machine they ran on, then as replayed on --cluster; see also `istbench replay`.
    """
    from istbench.api.replaying import replaying
    from istbench.api.show import show_report
    from istbench.report.page import PAGE_BANDWIDTHS
    from istbench.report.report import build_report

    shown = take_shown(given)
    results, drawn_in = results_and_pictures(results, example, pictures)
    with replaying() as tell:
        report = build_report(
            results,
            cluster=cluster,
            bandwidths=() if page is None else PAGE_BANDWIDTHS,
            tell=tell,
            **given,
        )
    show_report(report, results, pictures=drawn_in is not None, beside=drawn_in, page=page, **shown)
