"""`istbench lab validate`: the error of replays, measured on a shaped network."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.cli.options import (
    lab_nodes_option,
    latency_option,
    out_option,
    parse_time,
    plugin_option,
    racks_options,
    split_list,
)
from istbench.cluster.profile import bandwidth_text, parse_bandwidth
from istbench.config.options import parse_pairs
from istbench.config.run import RunRequest
from istbench.errors import UserError
from istbench.lab import network
from istbench.registry import check_name

if TYPE_CHECKING:
    from istbench.validation.measurement import ReplayError


@click.command("validate")
@click.option("--methods", default="ddp,local_sgd,ist", show_default=True, help="Methods, separated by commas.")
@click.option("--workload", default="speech", show_default=True, help="Workload to train.")
@click.option(
    "--workload-set", "workload_options", multiple=True, metavar="NAME=VALUE", help="Workload option. "
    "Default for speech: hidden=512, so that slow links do not take minutes.",
)  # fmt: skip
@lab_nodes_option
@click.option(
    "--bandwidth", default="100mbit,300mbit,1gbit,3gbit", show_default=True, help="One or several bandwidths."
)
@latency_option
@racks_options
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of repetitions."
)
@out_option
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list and nothing else on stdout.")
def command(out: Path, as_json: bool, **given: Any) -> None:
    """Train on shaped links, replay the traces, and print the errors of the replays.

    Writes the table, the figures and a picture to OUT/validation.
    """
    requests = _requests(given)
    bandwidths = split_list(given["bandwidth"], "--bandwidth", "100mbit,1gbit are two")
    for text in bandwidths:
        parse_bandwidth(text)
    latency_s = parse_time(given["latency"], "--latency")
    uplink = None if given["uplink"] is None else parse_bandwidth(given["uplink"])
    network.check()
    from istbench.processes.local import preload

    preload(requests)
    from istbench.cli.progress import Display
    from istbench.validation.measure import validate

    named = f"Replayed against measured: {given['workload']}, {given['nodes']} nodes"
    if uplink is not None:
        named += f" in {given['racks']} racks, uplinks of {bandwidth_text(uplink)}"
    stem = out / "validation" / f"{given['workload']}-n{given['nodes']}"
    if uplink is not None:
        stem = stem.with_name(f"{stem.name}-racks{given['racks']}")
    errors: list[ReplayError] = []
    try:
        with Display() as display:
            racks = given["racks"], uplink
            errors.extend(validate(requests, bandwidths, given["repeats"], latency_s, display, *racks))
    except BaseException:
        if errors:  # keep hours of measurements, and complete files from before
            _show(errors, f"{named}, unfinished", stem.with_name(f"{stem.name}-unfinished"), as_json=as_json)
        raise
    _show(errors, named, stem, as_json=as_json)


def _show(errors: Sequence["ReplayError"], title: str, stem: Path, *, as_json: bool) -> None:
    """Write the table, the figures and the picture, and print the table, or JSON."""
    from istbench.report.output.formats import table_markdown
    from istbench.report.output.terminal import print_table
    from istbench.validation.picture import draw_errors
    from istbench.validation.table import error_table

    table = error_table(errors, title)
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        figures = json.dumps([error.to_json() for error in errors], indent=1)
        stem.with_name(f"{stem.name}.json").write_text(f"{figures}\n")
        stem.with_name(f"{stem.name}.md").write_text(table_markdown(table))
        draw_errors(errors, title, stem)
    except OSError as error:
        raise UserError(f"cannot write {stem.parent}: {error.strerror}; choose another --out") from None
    if as_json:
        click.echo(json.dumps([error.to_json() for error in errors]))
    else:
        print_table(table, sys.stdout)
        click.echo(f"written: {stem}.json, .md, .png, .svg", err=True)


def _requests(given: dict[str, Any]) -> list[RunRequest]:
    workload, plugins = given["workload"], given["plugins"]
    options = parse_pairs(given["workload_options"], "--workload-set")
    if workload == "speech":
        options = {"hidden": "512", **options}
    methods = split_list(given["methods"], "--methods", "see `istbench list methods`")
    check_name("workloads", workload, plugins)
    for method in methods:
        check_name("methods", method, plugins)
    # One thread for each node: a node of the lab has one core for computing and sending.
    return [
        RunRequest(
            workload=workload,
            method=method,
            nodes=given["nodes"],
            workload_options=options,
            plugins=plugins,
            threads=1,
        )
        for method in methods
    ]
