"""`istbench lab validate`: the error of replays, measured on a shaped network."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Meta

from istbench.base.decode import convert
from istbench.base.errors import UserError, printable
from istbench.base.files import require_no_link
from istbench.base.options.run import RunRequest
from istbench.base.units import parse_bandwidth
from istbench.cli.options import (
    METHODS,
    link_options,
    option,
    out_option,
    plugin_option,
    split_list,
    workload_set_option,
)
from istbench.launch.lab import network
from istbench.launch.lab.network import MOST_NODES
from istbench.node.registry import check_name, load_workload, names_of

if TYPE_CHECKING:
    from istbench.studies.validation.table import ReplayError

_WORKLOADS = "speech,amazon670k"
_NODES = list[Annotated[int, Meta(ge=2, le=MOST_NODES)]]
# Small enough that slow links do not take minutes.
_SMALL = {"speech": {"hidden": "512"}}


@click.command("validate")
@option(
    "--methods",
    "Methods, separated by commas. Default: all that fit. A method trains the first workload that it fits.",
    METHODS,
    default=(),
)
@option("--workload", "One or several workloads.", default=_WORKLOADS)
@workload_set_option(
    "Option of the workloads that have it. Default for speech: hidden=512, so that slow links do not take minutes."
)
@option("--nodes", "One or several numbers of nodes, such as 2,4.", default="2")
@option("--bandwidth", "One or several bandwidths.", default="100mbit,300mbit,1gbit,3gbit")
@link_options
@option("--repeats", "Number of repetitions.", click.IntRange(1, 1000), default=1)
@option(
    "--seconds",
    "Seconds of this machine to measure in each run, at least.",
    click.FloatRange(0.1, 3600),
    default=5.0,
)
@option(
    "--scaling", "Replay traces for other computing speeds: half a core a node, and all cores for one node.", bool
)
@out_option
@plugin_option
@option("--json", "Print one JSON list and nothing else on stdout.", bool, name="as_json")
def command(out: Path, as_json: bool, scaling: bool, **given: Any) -> None:
    """Train on shaped links, replay the traces, and print the errors of the replays.

    Each replay has the computing that its run recorded: its error is that of the network's model. --scaling checks
    the scaling of computing. Writes tables, figures and pictures to OUT/validation. Reports name methods whose
    replays were never checked, or were off by over 5 %.
    """
    candidates = list(_requests(given))
    bandwidths = split_list(given["bandwidth"], "--bandwidth", "100mbit,1gbit are two")
    for text in bandwidths:
        parse_bandwidth(text, "--bandwidth")
    latency_s = given["latency"]
    if scaling and (max(given["racks"], given["host_nodes"]) > 1 or given["uplink"] is not None):
        raise UserError(
            "--scaling checks computing, --host-nodes, --racks and --uplink the network; leave them out"
        )
    network.check()
    from istbench.launch.processes.local import preload

    preload(candidates)
    from istbench.api.progress import Display
    from istbench.studies.validation.measure import Validation, fitting
    from istbench.studies.validation.record import ValidationFiles

    folder = require_no_link(out / "validation", "choose another --out")
    kind = {name: given[name] for name in ("racks", "uplink", "host_nodes", "inside")}
    files = ValidationFiles(folder, scaling=scaling, latency_s=latency_s, **kind)
    files.check({(one.workload, nodes) for one in candidates for nodes in {one.nodes, *([1] if scaling else ())}})
    errors: list[ReplayError] = []
    try:
        with Display() as display:
            named = {request.method for request in candidates} if given["methods"] else set()
            requests = fitting(candidates, display.preparing, named)
            validation = Validation(
                requests,
                bandwidths,
                repeats=given["repeats"],
                seconds=given["seconds"],
                latency_s=latency_s,
                **kind,
                display=display,
            )
            errors.extend(validation.of_scaling() if scaling else validation.of_the_network())
    except BaseException:
        if errors:  # keep hours of measurements, and complete files from before
            _show(errors, files, as_json=as_json, finished=False)
        raise
    _show(errors, files, as_json=as_json, finished=True)


def _show(errors: Sequence["ReplayError"], files: Any, *, as_json: bool, finished: bool) -> None:
    from istbench.report.output.terminal import print_table

    written = files.write(errors, finished=finished)
    if as_json:
        click.echo(json.dumps([error.to_json() for error in errors]))
    else:
        title = f"{files.title(errors)}{'' if finished else ', unfinished'}"
        print_table(files.table(errors, title), sys.stdout)
        names = ", ".join(f"{stem}.json" for stem in written)
        click.echo(printable(f"written: {names}; .md, .png, .svg"), err=True)


def _requests(given: dict[str, Any]) -> Iterator[RunRequest]:
    """A request for each method, number of nodes and workload, by workload."""
    workloads = split_list(given["workload"], "--workload", "see `istbench list workloads`")
    plugins = given["plugins"]
    nodes = convert(split_list(given["nodes"], "--nodes", "2,4 are two"), _NODES, lambda _: "--nodes", text=True)
    given_options = given["workload_options"]
    for workload in workloads:
        check_name("workloads", workload, plugins)
    for method in given["methods"]:
        check_name("methods", method, plugins)
    options = {workload: _options(workload, given_options, plugins) for workload in workloads}
    unknown = set(given_options) - {name for own in options.values() for name in own}
    if unknown:
        raise UserError(f"--workload-set {min(unknown)}: {' and '.join(workloads)} have no such option")
    for count in nodes:
        for workload in workloads:
            for method in given["methods"] or names_of("methods", plugins):
                # One thread for each node: a node of the lab has one core for computing and sending.
                yield RunRequest(
                    workload=workload,
                    method=method,
                    nodes=count,
                    workload_options=options[workload],
                    plugins=plugins,
                    threads=1,
                )


def _options(workload: str, given: dict[str, Any], plugins: Sequence[str]) -> dict[str, Any]:
    """The options of `workload` among those `given`, over the defaults of a validation."""
    known = {field.name for field in dataclasses.fields(load_workload(workload, plugins).Options)}
    return {**_SMALL.get(workload, {}), **{name: value for name, value in given.items() if name in known}}
