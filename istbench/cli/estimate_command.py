"""`istbench estimate`: the seconds of a step by every method, from numbers alone."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import click

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Nodes, Part
from istbench.base.units import parse_parameters, parse_step
from istbench.cli.options import BANDWIDTH, PAGE, PATH, TIME, Typed, explain_option, json_option, kind_of, option

_DTYPES = ("fp32", "float32", "bf16", "bfloat16", "fp16", "float16")


@click.command("estimate")
@option("--parameters", "Parameters of the model, such as 125M or 7B.", Typed(parse_parameters, "n"), required=True)
@option(
    "--step", "A step of one GPU without communication, such as 220ms.", Typed(parse_step, "time"), required=True
)
@option("--nodes", "Nodes, a GPU each; with --gpus-per-host, the number of hosts.", kind_of(Nodes), required=True)
@option("--gpus-per-host", "GPUs of a host, which share its link.", kind_of(Nodes))
@option("--bandwidth", "Link of a host, such as 25gbit. Needed without --cluster.", BANDWIDTH)
@option("--latency", "From one host to another, one way, such as 5ms. Default: 60us.", TIME)
@option("--samples", "Samples of a GPU in a step, for samples a second.", kind_of(Count))
@option("--dtype", "Numbers of a gradient.", click.Choice(_DTYPES), default="fp32")
@option("--backward", "Share of the step in the backward pass.", kind_of(Part, "share"), default="0.67")
@option(
    "--layers",
    "Lines `name,parameters`, or `name,1024x4096`, in the order of the model. Default: 16 equal layers.",
    PATH,
    metavar="FILE.csv",
)
@option("--cluster", "Links and hosts of a profile; the step stays as typed.", metavar="NAME|FILE.toml")
@option(
    "--method",
    "Rows, such as ddp,zero or 'diloco local_steps=8'. May be repeated. Default: all that follow from sizes.",
    name="methods",
    multiple=True,
    metavar="METHOD,...",
)
@option("--save", "Write a record for plan, map and replay.", PATH, metavar="FILE")
@option("--html", "Write the seconds against bandwidth as one page.", PAGE, metavar="FILE")
@explain_option
@json_option
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
    from istbench.api.estimate import estimate

    if save is not None and save.is_dir():
        raise UserError(f"--save {save} is a directory; name a file")
    found = inspect.unwrap(estimate)(methods=methods, **given)  # its errors name flags
    if save is not None:
        found.save(save)
    if as_json:
        click.echo(json.dumps(found.as_json(), allow_nan=False))
    else:
        from istbench.report.output.formats import print_report
        from istbench.report.report import Report

        print_report(Report(answers=(found.answer(),), tables=(found.table,)), sys.stdout, explain=explain)
    if html is not None:
        found.page(html)
