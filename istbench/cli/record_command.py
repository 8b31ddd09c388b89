"""`istbench record`: the steps of someone's own training script."""

import json
import math
import sys
from pathlib import Path

import click

from istbench.base.errors import UserError
from istbench.base.options.numbers import Seconds, Threads
from istbench.cli.options import PATH, json_option, kind_of, option
from istbench.cluster.script_record import LEAST_STEPS, ScriptRecord, save_script
from istbench.launch.processes.recorded_script import record_apart
from istbench.report.phrases import Caution, count_threads
from istbench.report.tables.numbers import number
from istbench.report.tables.table import Scalar, Table, items_table

_MOST_STEPS = 1_000_000
_MEGA = 1e6


@click.command("record", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=PATH, metavar="TRAIN.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@option(
    "--steps",
    "Optimizer steps to record; the script ends after them.",
    click.IntRange(LEAST_STEPS, _MOST_STEPS),
    default=30,
)
@option(
    "--max-seconds",
    "End a script that has not taken its steps by then.",
    kind_of(Seconds, "seconds"),
    default="600",
)
@option("--threads", "Threads of torch, as a node of a lab has. Default: the script's own.", kind_of(Threads))
@option("--out", "The record. Default: TRAIN.record.json here.", PATH, metavar="FILE")
@json_option
def command(
    script: Path,
    arguments: tuple[str, ...],
    steps: int,
    max_seconds: float,
    threads: int | None,
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
    file = out or Path(f"{script.stem}.record.json")
    if file.is_dir():
        raise UserError(f"--out {file} is a directory; name a file")
    record = record_apart(script, arguments, steps=steps, max_seconds=max_seconds, threads=threads)
    save_script(record, file)
    if as_json:
        click.echo(json.dumps(_as_json(record, file), allow_nan=False))
    else:
        from istbench.report.output.terminal import print_table

        print_table(_table(record, file), sys.stdout)


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


def _table(record: ScriptRecord, file: Path) -> Table:
    trained = [own for own in record.parameters if own.trained]
    ready = [own.ready_s for own in trained if own.ready_s is not None]
    values = sum(math.prod(own.shape) for own in trained)
    rows: list[tuple[str, str, Scalar]] = [
        ("seconds per step", number(record.step_s), record.step_s),
        ("steps timed", str(len(record.samples_s)), len(record.samples_s)),
        ("spread of their seconds", f"{number(min(record.samples_s))}–{number(max(record.samples_s))}", None),
        ("trained parameters", f"{values:,} in {len(trained)} tensors", values),
        ("MB of gradients", number(record.gradient_bytes / _MEGA), record.gradient_bytes / _MEGA),
    ]
    if ready:
        rows.append(("gradients ready after", f"{number(min(ready))}–{number(max(ready))} s", max(ready)))
    rows.append(("seconds of the optimizer", number(record.update_s), record.update_s))
    if record.backward_passes > 1:
        rows.append(("backward passes per step", str(record.backward_passes), record.backward_passes))
    peak = record.peak_bytes
    if peak is not None:
        rows.append(("MB of memory at the peak", number(peak / _MEGA), peak / _MEGA))
    if record.machine.work is not None:
        operations = record.machine.work.operations / 1e9
        rows.append(("GFLOP of matrix products", number(operations), operations))
    doubt = record.machine.doubt
    return items_table(
        rows,
        title=f"{record.script}: a step on {_machine(record)}",
        footer=(
            *(f"{note[:1].upper()}{note[1:]}." for note in record.notes),
            *([Caution(f"Careful: {doubt}.")] if doubt else []),
            f"Recorded in {file}. By other methods: `istbench replay {file} --nodes 2,4 --bandwidth 100mbit,1gbit`",
        ),
    )


def _machine(record: ScriptRecord) -> str:
    return record.environment.get("gpu") or f"{count_threads(record.machine.threads or 1)} of this machine"
