"""The wall seconds of a run with faults, split by what they were spent on."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from istbench.results.curves import Curve
from istbench.results.events import Evaluation, Event, Ready, Resume
from istbench.results.metrics import Metric


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
        """All of them."""
        return float(sum(dataclasses.astuple(self)))

    @property
    def to_target_s(self) -> float:
        """Those that the run would take without evaluations."""
        return self.seconds - self.evaluating_s


@dataclass(frozen=True, kw_only=True)
class _Start:
    """A start of a run by itself: after a loss, or with nodes that are back.

    Attributes:
        step: of the checkpoint. ready_s: seconds until all nodes had read it; None if they did not.
        nodes: their numbers before and after, if these differ.
    """

    step: int
    noticed: float
    noticing_s: float
    after_loss: bool
    nodes: tuple[int, ...]
    ready_s: float | None = None


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
    starts = _starts(events)
    for own in starts:
        alive = own.noticed - own.noticing_s - started
        resumed = max((at.wall_s for at in kept if at.step <= own.step), default=first.wall_s)
        if not own.after_loss:  # nothing is done again
            restarting += alive - (resumed - wall)
        elif ready:
            lost += alive - (resumed - wall)
        else:  # lost before all nodes had read the checkpoint
            restarting += alive
            lost -= resumed - wall
        noticing += own.noticing_s
        restarting += own.ready_s or 0.0
        started, wall, ready = own.noticed + (own.ready_s or 0.0), resumed, own.ready_s is not None
    resumes = {own.step for own in starts if own.ready_s is not None}
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


def _fewer(starts: Sequence[_Start], kept: Sequence[Evaluation]) -> float:
    """Train seconds of fewer nodes than at first, between the evaluations that are `kept`."""
    sizes: list[tuple[int, int]] = []  # the nodes from a step on
    most = max((own.nodes[0] for own in starts if own.nodes), default=0)
    for own in starts:
        if own.nodes and own.ready_s is not None:
            sizes = [*((step, nodes) for step, nodes in sizes if step < own.step), (own.step, own.nodes[1])]
    return sum(
        after.train_s - before.train_s
        for before, after in pairwise(kept)
        if next((nodes for step, nodes in reversed(sizes) if step <= before.step), most) < most
    )


def _starts(events: Sequence[Event]) -> list[_Start]:
    """Each start of a run by itself, in order."""
    found: list[_Start] = []
    for event in events:
        if isinstance(event, Resume) and (change := event.loss or event.resize):
            found.append(
                _Start(
                    step=max(0, event.step),
                    noticed=change.noticed,
                    noticing_s=event.loss.noticing_s if event.loss else 0.0,
                    after_loss=event.loss is not None,
                    nodes=(event.resize.before, event.resize.after) if event.resize else (),
                )
            )
        elif isinstance(event, Ready) and found:
            ready_s = event.starting_s + event.loading_s
            found[-1] = dataclasses.replace(found[-1], step=event.step, ready_s=ready_s)
    return found
