"""The record of a run with faults, beside its events, and its wall seconds by what they were spent on."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.files import writing_whole
from istbench.base.options.numbers import Duration, Natural
from istbench.results.curves import Curve
from istbench.results.events import Evaluation, Event, Ready, Resume
from istbench.results.metrics import Metric
from istbench.results.run_parts import ready_after, resumptions

Kind = Literal["kill", "host", "stop", "down", "slow", "full", "damage"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OF_LINKS: tuple[Kind, ...] = ("down", "slow")
ENDING: tuple[Kind, ...] = ("kill", "host", "damage")
"""Kinds after which all nodes start again."""
MOST_FAULTS = 1000
_MOST_BYTES = 2**22


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that hit a run.

    Attributes:
        rank: the victim. at_s: its train seconds by the schedule. seconds: that it lasted, on the clock of the run.
        time: in seconds since 1970. step: the last local step before it.
    """

    kind: Kind
    rank: Natural
    at_s: Duration
    seconds: Duration
    time: Duration
    step: Natural


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """When the first evaluation of a run ended, in seconds since 1970, and the faults that hit it."""

    began: Duration
    hits: Annotated[tuple[Hit, ...], Meta(max_length=MOST_FAULTS)]

    def write(self, path: Path) -> None:
        with writing_whole(path) as file:
            file.write(msgspec.json.encode(self) + b"\n")


def read_record(path: Path) -> FaultRecord:
    """The record in `path`.

    Raises:
        UserError: if it is missing or broken.
    """
    way_out = f"delete {path.parent} to run the cell again"
    return decode_json(read_bytes(path, "the faults of a run", _MOST_BYTES), FaultRecord, str(path), way_out)


@dataclass(frozen=True, kw_only=True)
class Wall:
    """Seconds of a run from its first evaluation to its last, by what they were spent on. Their sum is `seconds`.

    Attributes:
        computing_s: of the steps that count, as without faults. waiting_s: train seconds beyond those: for a node
            that stands still, or a slow link. fewer_s: of steps that count on fewer nodes (`--elastic`), which are
            in neither of the two.
        lost_s: of steps that were done again. noticing_s: from the last sign of life to the notice of a loss.
        restarting_s: from there until all nodes train again; also to stop and start with nodes that are back.
        checkpointing_s: other seconds between training and evaluations. evaluating_s: of evaluations that count.
    """

    computing_s: float
    waiting_s: float
    fewer_s: float
    lost_s: float
    noticing_s: float
    restarting_s: float
    checkpointing_s: float
    evaluating_s: float

    @property
    def seconds(self) -> float:
        return float(sum(dataclasses.astuple(self)))

    @property
    def to_target_s(self) -> float:
        """Those that the run would take without evaluations."""
        return self.seconds - self.evaluating_s


def wall_of(events: Sequence[Event], metric: Metric, began: float, fault_free_s: float, dilation: float) -> Wall:
    """The wall seconds in the `events` of a finished run.

    Args:
        began: when the first evaluation ended, in seconds since 1970. fault_free_s: train seconds without faults.
        dilation: of the lab. All seconds are those of the machines for which the lab stands.
    """
    kept = Curve.from_events(events, metric).evaluations
    first, last = kept[0], kept[-1]
    lost = noticing = restarting = between = 0.0
    started, wall, ready = began, first.wall_s, True  # the start of an attempt, and its wall clock then
    starts = resumptions(events)
    for resume, there in starts:
        change = resume.loss or resume.resize
        assert change is not None
        ended = ready_after(resume, there)
        noticing_s = resume.loss.noticing_s if resume.loss else 0.0
        ready_s = ended.starting_s + ended.loading_s
        alive = change.noticed - noticing_s - started
        resumed = max((at.wall_s for at in kept if at.step <= ended.step), default=first.wall_s)
        if resume.loss is None:  # nothing is done again
            restarting += alive - (resumed - wall)
        elif ready:
            lost += alive - (resumed - wall)
        else:  # lost before all nodes had read the checkpoint
            restarting += alive
            lost -= resumed - wall
        noticing += noticing_s
        restarting += ready_s
        started, wall, ready = change.noticed + ready_s, resumed, there is not None
    resumes = {there.step for _, there in starts if there is not None}
    for before, after in pairwise(kept):
        gap = after.wall_s - before.wall_s - _evaluating(after) - (after.train_s - before.train_s) * dilation
        if before.step in resumes:
            restarting += gap
        else:
            between += gap
    fewer = _fewer(starts, kept) * dilation
    trained = last.train_s * dilation - fewer
    computing = min(trained, fault_free_s * dilation)
    return Wall(
        computing_s=computing / dilation,
        waiting_s=(trained - computing) / dilation,
        fewer_s=fewer / dilation,
        lost_s=lost / dilation,
        noticing_s=noticing / dilation,
        restarting_s=restarting / dilation,
        checkpointing_s=between / dilation,
        evaluating_s=sum(map(_evaluating, kept[1:])) / dilation,
    )


def _evaluating(evaluation: Evaluation) -> float:
    return evaluation.assemble_s + evaluation.evaluate_s


def _fewer(starts: Sequence[tuple[Resume, Ready | None]], kept: Sequence[Evaluation]) -> float:
    """Train seconds of fewer nodes than at first, between the evaluations that are `kept`."""
    sizes: list[tuple[int, int]] = []  # the nodes from a step on
    changes = [(resume.resize, ready) for resume, ready in starts if resume.resize is not None]
    most = max((change.before for change, _ in changes), default=0)
    for change, ready in changes:
        if ready is not None:
            sizes = [*((step, nodes) for step, nodes in sizes if step < ready.step), (ready.step, change.after)]
    return sum(
        after.train_s - before.train_s
        for before, after in pairwise(kept)
        if next((nodes for step, nodes in reversed(sizes) if step <= before.step), most) < most
    )
