"""Records the trace of a finished run anew, on a machine that is idle now, without training to the end."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from istbench.base.errors import UserError, printable
from istbench.base.machine import cores
from istbench.base.options.interval import Interval
from istbench.base.options.shares import Shares
from istbench.cluster.trace import POST, Trace
from istbench.cluster.trace_file import load_trace
from istbench.fabric.recorder import LEAST_ROUNDS, LEAST_STEPS
from istbench.launch.cells.resolve import prepare_cell
from istbench.node.registry import plugins_of
from istbench.results.events import Note
from istbench.results.header import Header
from istbench.results.store import RunDirectory
from istbench.workloads.base import ShowProgress

_ROUNDS_MORE = 2  # the first round is not recorded
_LIKE = 0.1  # what some methods send follows from the weights


def why_not(run: RunDirectory) -> str:
    """The reason why `run` cannot have another trace, in a few words; empty if it can."""
    header = run.header()
    if header.status != "done":
        return f"it is {header.status}, and has no end yet"
    if header.config.lab is not None:
        return "it ran in a lab; run it again there with --again"
    if not run.trace.exists():
        return "it has no trace"
    if header.host.count > 1:
        return f"it ran on {header.host.count} machines; run it again there with --again"
    if header.config.device == "cuda" and not torch.cuda.is_available():
        return "it ran on a GPU, and torch sees no GPU here; retrace it where it ran"
    if header.threads > cores():
        return f"{header.threads} threads a node are more than the {cores()} cores here; retrace it where it ran"
    return ""


def resolved(run: RunDirectory, plugins: Iterable[str], data: Path | None, progress: ShowProgress) -> Header:
    """The cell of `run`, resolved as `istbench run` does it.

    Its code and its data are those of this machine and of the user's `plugins` and `data`: no path in the header
    counts.

    Raises:
        UserError: if the code, the data or the options are not those of `run`.
    """
    header = run.own_header()
    if header.typed_data and data is None:
        raise UserError(
            f"its data came by --data {printable(header.typed_data)}; give your copy of it by --data DIR"
        )
    request = header.config.request(plugins=plugins_of(header.config, plugins), sinks=(), data=data)
    cell = prepare_cell(request, progress)
    if cell.cell != header.cell:
        raise UserError(
            f"its options, code and data are those of cell {cell.cell} here; `istbench run --again` trains it anew"
        )
    return msgspec.structs.replace(cell, threads=header.threads)


def shortened(cell: Header, trace: Trace, shares: Sequence[float] = ()) -> Header:
    """`cell` for the first rounds alone, as many as `trace` has, with one evaluation at the end.

    shares: of unequal nodes, as the run that `trace` is of measured them; empty if they are equal.
    """
    steps = _steps(trace)
    config = msgspec.structs.replace(
        cell.config,
        steps=steps,
        eval_every=Interval(steps=steps),
        target=None,
        max_seconds=None,
        shares=Shares(shares) if shares else cell.config.shares,
    )
    return msgspec.structs.replace(cell, config=config, budget=f"{steps} steps")


def replace_trace(run: RunDirectory, short: RunDirectory) -> tuple[Trace, Trace]:
    """Put the trace of `short`, a run of its shortened cell on the same disk, in place of that of `run`.

    Returns the old and the new one. The learning curve of `run` stays, and so do the seconds that it measured
    itself.

    Raises:
        UserError: for a trace that cannot be read, or if the new rounds send other messages: the old trace stays.
    """
    before, after = load_trace(run.trace), load_trace(short.trace)
    difference = _difference(before, after)
    if difference:
        raise UserError(f"{run.path} keeps its trace: {difference}; `istbench run --again` trains the cell anew")
    with run.locked():
        short.trace.replace(run.trace)
        run.append(Note(message=f"its trace was recorded again at {short.header().finished_at}"))
    return before, after


def _steps(trace: Trace) -> int:
    """Local steps after which a recorder has a sample as large as `trace`."""
    first = max(trace.round_steps, trace.meta.warmup_steps, trace.meta.unlike_steps)
    if trace.rounds < LEAST_ROUNDS or trace.steps < LEAST_STEPS:
        return first + trace.steps  # the run ended before its sample was complete: more steps would record more
    return first + trace.steps + _ROUNDS_MORE * trace.round_steps


def _difference(before: Trace, after: Trace) -> str:
    """What the rounds of two traces do not share, in a few words; empty if they are alike."""
    for what in ("world_size", "rounds", "steps"):
        was, found = getattr(before, what), getattr(after, what)
        if was != found:
            return f"{found} {what.replace('world_size', 'nodes')} were recorded where it has {was}"
    was, found = _bytes(before), _bytes(after)
    if abs(found - was) > _LIKE * was:
        return f"a sample sends {found:,} bytes where it sent {was:,}"
    return ""


def _bytes(trace: Trace) -> int:
    return sum(int(np.where(events["code"] == POST, events["bytes"], 0).sum()) for events in trace.nodes)
