"""The wall seconds of a run with faults, split by what they were spent on."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from istbench.results.curves import Curve
from istbench.results.events import Evaluation, Event, Loss, Ready, Resume
from istbench.results.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class Wall:
    """Seconds of a run from its first evaluation to its last, by what they were spent on. Their sum is `seconds`.

    Attributes:
        computing_s: of the steps that count, as without faults. waiting_s: train seconds beyond those: for a node
            that stands still, or a slow link.
        lost_s: of steps that were done again. noticing_s: from the last sign of life to the notice of a loss.
        restarting_s: from there until all nodes train again.
        checkpointing_s: other seconds between training and evaluations. evaluating_s: of evaluations that count.
    """

    computing_s: float
    waiting_s: float
    lost_s: float
    noticing_s: float
    restarting_s: float
    checkpointing_s: float
    evaluating_s: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return sum(dataclasses.astuple(self))

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
    for loss, step, ready_s in _losses(events):
        alive = loss.noticed - loss.noticing_s - started
        resumed = max((own.wall_s for own in kept if own.step <= step), default=first.wall_s)
        if ready:
            lost += alive
        else:  # lost before all nodes had read the checkpoint
            restarting += alive
        lost -= resumed - wall
        noticing += loss.noticing_s
        restarting += ready_s or 0.0
        started, wall, ready = loss.noticed + (ready_s or 0.0), resumed, ready_s is not None
    resumes = {step for _, step, ready_s in _losses(events) if ready_s is not None}
    for before, after in pairwise(kept):
        gap = after.wall_s - before.wall_s - _evaluating(after) - (after.train_s - before.train_s) * dilation
        if before.step in resumes:
            restarting += gap
        else:
            between += gap
    trained = last.train_s * dilation
    computing = min(trained, fault_free_s * dilation)
    return Wall(
        computing_s=computing / dilation,
        waiting_s=(trained - computing) / dilation,
        lost_s=lost / dilation,
        noticing_s=noticing / dilation,
        restarting_s=restarting / dilation,
        checkpointing_s=between / dilation,
        evaluating_s=sum(map(_evaluating, kept[1:])) / dilation,
    )


def _evaluating(evaluation: Evaluation) -> float:
    return evaluation.assemble_s + evaluation.evaluate_s


def _losses(events: Sequence[Event]) -> list[tuple[Loss, int, float | None]]:
    """Each loss, the step of its checkpoint, and the seconds until all nodes had read it; None if they did not."""
    found: list[tuple[Loss, int, float | None]] = []
    for event in events:
        if isinstance(event, Resume) and event.loss is not None:
            found.append((event.loss, max(0, event.step), None))
        elif isinstance(event, Ready) and found:
            found[-1] = (found[-1][0], event.step, event.starting_s + event.loading_s)
    return found
