"""Copy the tables, curves and pictures of a results directory to another one as a reference, without its runs.

    python scripts/freeze_results.py RESULTS results/speech-synthetic
    python scripts/freeze_results.py RESULTS results/light-cifar10 --cluster m5.2xlarge,p3.2xlarge
    python scripts/freeze_results.py RESULTS TARGET --cluster m5.2xlarge --bandwidth 1gbit            # to try it

With --cluster it adds the same runs replayed there, with --bandwidth at each of these bandwidths; with --along the
curves over local steps, or over the MB that a node sends. It writes README.md (the tables), report.json,
evaluations.csv (a row for each evaluation) and the pictures.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path

from istbench.base.options.defaults import BASELINE
from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import select_clusters
from istbench.report.output.formats import table_json, table_markdown
from istbench.report.output.pictures import draw_plots
from istbench.report.plots.over_time import metric_over
from istbench.report.plots.plot import Plot
from istbench.report.report import Report, build_report, build_report_on_clusters
from istbench.results.frame import write_evaluations

_HASH = re.compile(r"-[0-9a-f]{6}(?=-(over-(time|steps|traffic)|time-to-target))")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--baseline", default=BASELINE, help="method that speed-ups are against")
    parser.add_argument("--metric", help="metric of the evaluations; default: the metric of the workload")
    parser.add_argument("--levels", type=levels, default=(), help="levels of the metric, separated by commas")
    parser.add_argument("--cluster", type=names, default=[], help="clusters to replay on, separated by commas")
    parser.add_argument("--bandwidth", type=names, default=[], help="of their links, separated by commas")
    parser.add_argument(
        "--along", choices=("steps", "traffic"), nargs="*", default=[], help="curves over these too"
    )
    arguments = parser.parse_args()
    report = report_of(arguments)
    if report.problems:
        parser.error("\n".join(report.problems))
    target: Path = arguments.target
    target.mkdir(parents=True, exist_ok=True)
    plots = named_for_readers(report.plots)
    shown = "\n".join(f"![{path.stem}]({path.name})" for path in draw_plots(plots, target) if path.suffix == ".png")
    tables = "\n".join(table_markdown(table) for table in report.tables)
    (target / "README.md").write_text(f"# {target.name}\n\n{tables}\n{shown}\n")
    content = {"tables": [table_json(table) for table in report.tables]}
    (target / "report.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_evaluations(arguments.results, target / "evaluations.csv")


def named_for_readers(plots: Iterable[Plot]) -> list[Plot]:
    """`plots` without the hash of their group in the file name, unless two would then have the same name."""
    found = list(plots)
    short = [_HASH.sub("", plot.stem) for plot in found]
    return [
        dataclasses.replace(plot, stem=name) if short.count(name) == 1 else plot
        for plot, name in zip(found, short, strict=True)
    ]


def names(text: str) -> list[str]:
    """The names between the commas of `text`."""
    return text.split(",")


def levels(text: str) -> tuple[float, ...]:
    """The numbers in a text such as "0.7,0.75"."""
    return tuple(float(level) for level in names(text))


def report_of(arguments: argparse.Namespace) -> Report:
    """The report on the measured runs, then on the replayed ones if there are clusters."""
    how = {"baseline": arguments.baseline, "metric": arguments.metric, "levels": arguments.levels}
    measured = build_report(arguments.results, **how)
    curves = [metric_over(group, along) for group in measured.groups for along in arguments.along]
    drawn = tuple(curve for curve in curves if curve.panels)
    measured = dataclasses.replace(measured, plots=measured.plots + drawn)
    if not arguments.cluster:
        return measured
    clusters = select_clusters(arguments.cluster, [parse_bandwidth(text) for text in arguments.bandwidth])
    replayed = build_report_on_clusters(arguments.results, clusters, **how)
    return Report(
        tables=measured.tables + replayed.tables,
        plots=measured.plots + replayed.plots,
        problems=measured.problems + replayed.problems,
    )


if __name__ == "__main__":
    main()
