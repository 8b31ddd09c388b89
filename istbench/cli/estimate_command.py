"""`istbench estimate`: the seconds of a step by every method, from numbers alone."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.base.decode import convert
from istbench.base.errors import UserError, shown
from istbench.base.options.numbers import Count, Nodes, Part
from istbench.base.units import parse_time
from istbench.cli.options import BANDWIDTH, PAGE, PATH, TIME, Typed, explain_option, kind_of
from istbench.cluster.profile import load_profile

if TYPE_CHECKING:
    from istbench.cluster.script_record import DType
    from istbench.plan.estimate import Estimate
    from istbench.plan.numbers import Numbers

_COUNT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kmbgt]?)", re.IGNORECASE)
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_MOST_PARAMETERS = 10**14
_MOST_GPUS = 72
"""GPUs of the largest host: one domain of NVLink."""
_DTYPES: "dict[str, DType]" = {
    "fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16",
    "float16": "float16",
}  # fmt: skip


def _parameters(text: str, flag: str) -> int:
    """A number of parameters such as `125M`."""
    found = _COUNT.fullmatch(text.strip().replace(",", ""))
    value = round(float(found[1]) * _SCALES[found[2].lower()]) if found and len(text) < 40 else 0
    if not 0 < value <= _MOST_PARAMETERS:
        raise UserError(f"{flag} {shown(text)} is not a number such as 125M, 7B or 30846720; at most 100T")
    return value


def _step(text: str, flag: str) -> float:
    seconds = parse_time(text, flag)
    if seconds <= 0:
        raise UserError(f"{flag} {shown(text)}: a step takes more than 0 seconds")
    return seconds


@click.command("estimate")
@click.option(
    "--parameters", type=Typed(_parameters, "n"), required=True, help="Parameters of the model, such as 125M or 7B."
)
@click.option(
    "--step",
    type=Typed(_step, "time"),
    required=True,
    help="A step of one GPU without communication, such as 220ms.",
)
@click.option(
    "--nodes",
    type=kind_of(Nodes),
    required=True,
    help="Nodes, a GPU each; with --gpus-per-host, the number of hosts.",
)
@click.option("--gpus-per-host", type=kind_of(Nodes), help="GPUs of a host, which share its link.")
@click.option("--bandwidth", type=BANDWIDTH, help="Link of a host, such as 25gbit. Needed without --cluster.")
@click.option("--latency", type=TIME, help="From one host to another, one way, such as 5ms. Default: 60us.")
@click.option("--samples", type=kind_of(Count), help="Samples of a GPU in a step, for samples a second.")
@click.option(
    "--dtype", type=click.Choice(list(_DTYPES)), default="fp32", show_default=True, help="Numbers of a gradient."
)
@click.option(
    "--backward",
    type=kind_of(Part, "share"),
    default="0.67",
    show_default=True,
    help="Share of the step in the backward pass.",
)
@click.option(
    "--layers",
    type=PATH,
    metavar="FILE.csv",
    help="Lines `name,parameters`, or `name,1024x4096`, in the order of the model. Default: 16 equal layers.",
)
@click.option("--cluster", metavar="NAME|FILE.toml", help="Links and hosts of a profile; the step stays as typed.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="METHOD,...",
    help="Rows, such as ddp,zero or 'diloco local_steps=8'. May be repeated. Default: all that follow from sizes.",
)
@click.option("--save", type=PATH, metavar="FILE", help="Write a record for plan, map and replay.")
@click.option("--html", type=PAGE, metavar="FILE", help="Write the seconds against bandwidth as one page.")
@explain_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def command(
    methods: tuple[str, ...],
    save: Path | None,
    html: Path | None,
    explain: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Estimate the seconds of a step by each method from numbers alone: no model, no script, nothing runs.

    \b
    istbench estimate --parameters 125M --step 220ms --nodes 2 --gpus-per-host 8 --bandwidth 25gbit
    istbench estimate --parameters 125M --step 220ms --nodes 2 --bandwidth 1gbit --save my.record.json

    The answer says how much faster the nodes are than one, what holds them back and what helps. The table has the
    bandwidths at which 50, 75, 90 and 95 % of a step compute (see docs/estimate.md).
    """
    numbers = _numbers(**given)
    from istbench.cli.replaying import replaying
    from istbench.plan.estimate import checked_lines, estimate
    from istbench.plan.script_time import chosen_methods

    with replaying():
        found = estimate(numbers, chosen_methods(methods))
    checked = checked_lines(numbers, found.cluster, found.rows)
    if save is not None:
        from istbench.cluster.script_record import save_script

        if save.is_dir():
            raise UserError(f"--save {save} is a directory; name a file")
        save_script(found.record, save)
    from istbench.cli.estimate_report import estimate_page, estimate_sentence, estimate_table

    answer, table = estimate_sentence(found), estimate_table(found, checked)
    if as_json:
        click.echo(json.dumps(_as_json(found, checked), allow_nan=False))
    else:
        from istbench.report.output.formats import print_report
        from istbench.report.report import Report

        print_report(Report(answers=(answer,), tables=(table,)), sys.stdout, explain=explain)
    if html is not None:
        from istbench.report.output.html.write import write_page

        with replaying():
            page = estimate_page(found, answer, table)
        write_page(page, html)


def _numbers(
    *,
    step: float,
    nodes: int,
    gpus_per_host: int | None,
    latency: float | None,
    dtype: str,
    layers: Path | None,
    cluster: str | None,
    **given: Any,
) -> "Numbers":
    """The typed numbers together."""
    from istbench.plan.numbers import Numbers, read_layers

    profile = None if cluster is None else load_profile(cluster)
    if profile is None and given["bandwidth"] is None:
        raise UserError("estimate needs --bandwidth, the link of a host such as 25gbit, or a --cluster")
    gpus = gpus_per_host or 1
    if gpus > _MOST_GPUS:
        raise UserError(
            f"--gpus-per-host {gpus}: no host has more than {_MOST_GPUS} GPUs; --nodes counts the hosts"
        )
    hosts = 1 if profile is None or profile.host is None or gpus_per_host is not None else profile.host.nodes
    total = convert(nodes * gpus, Nodes, lambda _: "--nodes times --gpus-per-host")
    return Numbers(
        step_s=step,
        nodes=total,
        gpus_per_host=min(hosts, total) if gpus_per_host is None else gpus,
        latency_s=latency,
        dtype=_DTYPES[dtype],
        layers=() if layers is None else read_layers(layers),
        cluster=profile,
        **given,
    )


def _as_json(found: "Estimate", checked: list[str]) -> dict[str, Any]:
    numbers = found.numbers
    samples = numbers.samples or 1
    return {
        "inputs": {
            "parameters": numbers.parameters,
            "step_s": numbers.step_s,
            "nodes": numbers.nodes,
            "hosts": numbers.hosts,
            "gpus_per_host": numbers.gpus_per_host,
            "bandwidth": found.cluster.bandwidth_out / found.cluster.payload,
            "latency_s": found.cluster.latency_s,
            "samples": numbers.samples,
            "dtype": numbers.dtype,
            "backward": numbers.backward,
        },
        "rows": [
            {
                "method": row.method,
                "options": dict(row.options),
                "local_steps": row.local_steps,
                "step_s": row.step_s,
                "low": row.low_s,
                "high": row.high_s,
                "samples_per_s": samples * row.over_gpu / row.alone_s,
                "over_gpu": row.over_gpu,
                "over_host": None if found.host_samples is None else row.over_gpu / found.host_samples,
                "computing": row.computing,
                "sent_bytes": row.sent,
                "bandwidth_for": {f"{level:g}": bandwidth for level, bandwidth in row.bandwidth_for.items()},
                "steps_for": {f"{level:g}": steps for level, steps in row.steps_for.items()},
            }
            for row in found.rows
        ],
        "held_by": dict(found.held_by),
        "helps": [{"what": name, "step_s": seconds} for name, seconds in found.helps],
        "left_out": list(found.left_out),
        "checked": checked,
    }
