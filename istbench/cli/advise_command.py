"""`istbench advise`: the method to use for a task on some nodes, with its odds."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from istbench.base.errors import UserError
from istbench.base.options.numbers import MOST_NODES, Minutes, MostSeeds
from istbench.cli import EXIT_FAILED, EXIT_TARGET_MISSED, say
from istbench.cli.options import (
    BANDWIDTH,
    METHODS,
    PAGE,
    TIME,
    json_option,
    kind_of,
    option,
    out_option,
    place_options,
    plugin_option,
    run_options,
    set_option,
    take_backend,
    workload_set_option,
)
from istbench.results.stats import finite

if TYPE_CHECKING:
    from istbench.launch.backends.backend import Backend
    from istbench.studies.advise.answer import Advice
    from istbench.studies.advise.question import Probed, Question


@click.command("advise")
@click.argument("workload", metavar="WORKLOAD|FILE.py")
@option("--nodes", "Nodes to train on.", click.IntRange(2, MOST_NODES), required=True)
@option("--bandwidth", "Bandwidth of the link of a node, each way, such as 1gbit.", BANDWIDTH)
@option("--latency", "Latency from one node to another, one way, such as 5ms.", TIME)
@option(
    "--cluster",
    "Cluster of the nodes; see `istbench list clusters`. Default: `this`, nodes that compute as this machine does.",
    metavar="NAME|FILE.toml",
)
@run_options(
    "target",
    what="Level of the metric to reach: accuracy 0.77, or loss 1.9. Default: what one node reaches alone in a "
    "fifth of --minutes.",
)
@option("--minutes", "Minutes until the answer, all included.", kind_of(Minutes), default=10.0)
@option("--methods", "Methods to choose from, beside ddp. Default: all.", METHODS, default=(), metavar="NAME,...")
@option("--seeds", "Most seeds of a method.", kind_of(MostSeeds), default=5)
@set_option
@workload_set_option()
@run_options("batch_size", "data", "device", "amp", "channels_last", "compile", "threads", "timeout_s", "anyway")
@plugin_option
@out_option
@place_options
@option(
    "--measure",
    "Afterwards train the first two to the target in a lab (Linux, root), on --hosts or under torchrun, and "
    "print the regret.",
    bool,
    name="measures",
)
@option("--html", "Also write the page of `istbench report`.", PAGE, name="page", metavar="FILE")
@json_option
def command(minutes: float, out: Path, measures: bool, page: Path | None, as_json: bool, **given: Any) -> int:
    """Recommend a method for WORKLOAD on some nodes, with the odds that it is the first to the target.

    First, one process trains a few steps. Replays of every method from these steps tell which ones can be first.
    The rest of --minutes trains those, ddp, and ddp with accumulation: short, at equal budgets, on this machine.

    All runs stay in --out. The same command resumes after Ctrl-C; with more --minutes it goes on.
    """
    started = time.monotonic()
    backend = take_backend(given)
    from istbench.api.advice import advised, question_of

    question = question_of(**given)
    truth_backend = _truth_backend(backend, question, measures)
    if truth_backend is not None:
        truth_backend.begin([question.base], out)
    from istbench.api.progress import Display

    with Display() as display:
        probed, advice = advised(
            question, out, display, minutes=minutes, started=started, restarts=backend.restarts
        )
    failed = False
    if truth_backend is None:
        _show(advice, as_json)
    else:
        failed = _measure(advice, probed, truth_backend, out, as_json)
    if page is not None:
        from istbench.api.replaying import replaying
        from istbench.api.show import write_page_of
        from istbench.report.page import PAGE_BANDWIDTHS
        from istbench.report.report import build_report

        with replaying():
            report = build_report(out, cluster=probed.profile, bandwidths=PAGE_BANDWIDTHS)
        write_page_of(report, out, page)
    if advice.best is None:
        return EXIT_TARGET_MISSED
    return EXIT_FAILED if failed else 0


def _truth_backend(backend: "Backend", question: "Question", measures: bool) -> "Backend | None":
    """The backend that measures the truth; None if nobody asks for it."""
    from istbench.launch.backends.here import Here

    if not measures:
        if not isinstance(backend, Here):
            raise UserError(f"{backend.chosen_by} is for --measure: all probes run on this machine; add --measure")
        return None
    if not isinstance(backend, Here):
        backend.fit(question.base)  # refused now, and not after the minutes
        return backend
    if question.cluster is not None or question.bandwidth is None:
        raise UserError(
            "--measure in a lab is for nodes like this machine: leave out --cluster, or name its --hosts"
        )
    from istbench.launch.lab.network import ShapedNetwork

    nodes, latency_s = question.base.nodes, question.latency_s or 0.0
    lab = ShapedNetwork(nodes=nodes, bandwidth=question.bandwidth, latency_s=latency_s)
    lab.check()
    return Here(restarts=backend.restarts, lab=lab)


def _measure(advice: "Advice", probed: "Probed", backend: "Backend", out: Path, as_json: bool) -> bool:
    """Measure the first two, and print and keep the truth, also after an error; returns whether a run failed.

    The words of the advice come first. One JSON object holds both, so it comes last.
    """
    from istbench.api.progress import Display
    from istbench.studies.advise.measure import MeasuredCandidate, first_two, keep, measure

    if not as_json:
        _show(advice, as_json)
    measured: list[MeasuredCandidate] = []
    try:
        with Display() as display:
            measured.extend(measure(first_two(advice), probed, backend, out, display))
    finally:
        truth = {one.label: one.seconds for one in measured}
        failures = {one.label: one.failure for one in measured if one.failure}
        if as_json:
            _show(advice, as_json, truth, failures)
        elif truth:
            _show_truth(advice, truth, failures)
        if truth:
            say(f"kept in {keep(out, advice, truth)}")
    return bool(failures)


def _show(
    advice: "Advice",
    as_json: bool,
    truth: Mapping[str, float | None] | None = None,
    failures: Mapping[str, str] | None = None,
) -> None:
    from istbench.report.output.terminal import wrapped
    from istbench.studies.advise.advice_file import regret
    from istbench.studies.advise.advice_text import advice_text

    if not as_json:
        click.echo(wrapped(advice_text(advice)))
        return
    known: dict[str, Any] = {}
    if truth is not None:
        found = regret(advice, truth) if len(truth) > 1 else None
        known = {"truth": truth, "regret": finite(found), "failures": failures}
    click.echo(json.dumps({**msgspec.to_builtins(advice), **known}, allow_nan=False))


def _show_truth(advice: "Advice", truth: Mapping[str, float | None], failures: Mapping[str, str]) -> None:
    from istbench.report.output.terminal import wrapped
    from istbench.studies.advise.advice_text import truth_lines

    lines = truth_lines(advice, truth)
    if len(truth) == 1:  # of a single run, the last line has no regret to tell
        lines = lines[:-1]
    lines += [f"{label} failed: {error}" for label, error in failures.items()]
    click.echo(wrapped("\n".join(["", "Measured:", *(f"  {line}" for line in lines)])))
