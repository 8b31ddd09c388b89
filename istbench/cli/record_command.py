"""`istbench record`: the steps of someone's own training script."""

import json
import sys
from pathlib import Path

import click

from istbench.base.decode import convert
from istbench.base.errors import UserError
from istbench.base.options.numbers import Seconds, Threads
from istbench.cli.options import PathType
from istbench.cluster.script_record import LEAST_STEPS, ScriptRecord, save_script
from istbench.launch.processes.recorded_script import record_apart

_MOST_STEPS = 1_000_000


@click.command("record", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=PathType(), metavar="TRAIN.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.option(
    "--steps",
    type=click.IntRange(LEAST_STEPS, _MOST_STEPS),
    default=30,
    show_default=True,
    help="Optimizer steps to record; the script ends after them.",
)
@click.option(
    "--max-seconds", default="600", show_default=True, help="End a script that has not taken its steps by then."
)
@click.option("--threads", help="Threads of torch, as a node of a lab has. Default: the script's own.")
@click.option("--out", type=PathType(), metavar="FILE", help="The record. Default: TRAIN.record.json here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def command(
    script: Path,
    arguments: tuple[str, ...],
    steps: int,
    max_seconds: str,
    threads: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run TRAIN.py with its own ARGS, and record its first optimizer steps. The script stays as it is.

    \b
    istbench record --steps 30 train.py --batch-size 64
    istbench replay train.record.json --nodes 2,4 --bandwidth 100mbit,1gbit
    istbench plan train.record.json --method fsdp --nodes 4

    The record holds the seconds of a step, the moment when each gradient is ready, and sizes. A replay gives
    seconds by other methods on other clusters, but no accuracy. Options of istbench stand before TRAIN.py.
    """
    limit = convert(max_seconds, Seconds, lambda _: "--max-seconds", text=True)
    count = None if threads is None else convert(threads, Threads, lambda _: "--threads", text=True)
    file = out or Path(f"{script.stem}.record.json")
    if file.is_dir():
        raise UserError(f"--out {file} is a directory; name a file")
    record = record_apart(script, arguments, steps=steps, max_seconds=limit, threads=count)
    save_script(record, file)
    if as_json:
        click.echo(json.dumps(_as_json(record, file), allow_nan=False))
    else:
        from istbench.report.output.terminal import print_table
        from istbench.report.tables.script import record_table

        print_table(record_table(record, file), sys.stdout)


def _as_json(record: ScriptRecord, file: Path) -> dict[str, object]:
    """Parameters in the order in which their gradients become ready; a moment is null where none was seen."""
    return {
        "step_s": record.step_s,
        "parameters": [
            {"name": own.names[0], "shape": own.shape, "dtype": own.dtype, "bytes": own.bytes}
            for own in record.parameters
        ],
        "gradient_ready_s": [own.ready_s for own in record.parameters],
        "peak_bytes": record.peak_bytes,
        "file": str(file),
    }
