"""`istbench report`: tables and pictures of what is in a results directory."""

import sys
from pathlib import Path

import click


@click.command("report")
@click.argument("results", default="results", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "markdown", "csv", "json"]),
    default="table",
    show_default=True,
    help="How the tables are printed.",
)
@click.option("--workload", help="Only this workload.")
@click.option("--baseline", default="ddp", show_default=True, help="Method that speed-ups are against.")
@click.option("--pictures/--no-pictures", default=True, help="Draw PNG and SVG into RESULTS/report.")
def command(results: Path, style: str, workload: str | None, baseline: str, pictures: bool) -> None:
    """Tables and pictures of the runs in a results directory."""
    from istbench.report.build import build_report
    from istbench.report.render import print_report

    report = build_report(results, baseline=baseline, workload=workload, pictures=pictures)
    print_report(report, sys.stdout, style=style)
