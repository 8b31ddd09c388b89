"""The parts of a resumed run: machines, threads, versions, source trees, and the losses between them."""

from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from istbench.results.events import Event, Loss, Ready, Resume, RunPart, Start


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """A restart of a run by itself, after a loss; its seconds stand in no clock of the run.

    Attributes:
        step: of the checkpoint, 0 without one. The others are those of `Loss` and `Ready`, 0 where the run was lost
            again before it was ready.
    """

    step: int
    cause: str
    noticing_s: float
    starting_s: float
    loading_s: float
    redone_steps: int
    redone_s: float

    @classmethod
    def of(cls, resume: Resume, loss: Loss, ready: Ready | None) -> "Restart":
        ready = ready_after(resume, ready)
        return cls(
            step=ready.step,
            cause=loss.cause,
            noticing_s=loss.noticing_s,
            starting_s=ready.starting_s,
            loading_s=ready.loading_s,
            redone_steps=loss.redone_steps,
            redone_s=loss.redone_s,
        )

    @property
    def seconds(self) -> float:
        """All seconds that the loss cost."""
        return self.noticing_s + self.starting_s + self.loading_s + self.redone_s


class Resized(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the number of nodes, from `before` to `after`; its seconds stand in no clock of the run.

    Attributes:
        step: of the checkpoint, 0 without one. seconds: those of the restart, or of ending and starting all nodes.
    """

    step: int
    before: int
    after: int
    cause: str
    seconds: float


def restarts(events: Sequence[Event]) -> list[Restart]:
    return [
        Restart.of(resume, resume.loss, ready) for resume, ready in resumptions(events) if resume.loss is not None
    ]


def after_loss(events: Sequence[Event]) -> bool:
    """Whether the last part of a run began by itself, after a loss."""
    last = next((event for event in reversed(events) if isinstance(event, Start | Resume)), None)
    return isinstance(last, Resume) and last.loss is not None


def resizes(events: Sequence[Event]) -> list[Resized]:
    """The changes of the number of nodes of a run, in order."""
    found = []
    for resume, ready in resumptions(events):
        if (change := resume.resize) is None:
            continue
        there = ready_after(resume, ready)
        if resume.loss is not None:
            seconds = Restart.of(resume, resume.loss, ready).seconds
        else:
            seconds = there.starting_s + there.loading_s
        found.append(
            Resized(step=there.step, before=change.before, after=change.after, cause=change.cause, seconds=seconds)
        )
    return found


def ready_after(resume: Resume, ready: Ready | None) -> Ready:
    """`ready`; if the run was lost again before, at the step of its checkpoint after no seconds."""
    return ready or Ready(step=max(0, resume.step), starting_s=0.0, loading_s=0.0)


def resumptions(events: Sequence[Event]) -> list[tuple[Resume, Ready | None]]:
    """The resumptions of a run by itself, each with the moment when its nodes were ready, if it came."""
    found: list[tuple[Resume, Ready | None]] = []
    for event in events:
        if isinstance(event, Resume) and (event.loss is not None or event.resize is not None):
            found.append((event, None))
        elif isinstance(event, Ready) and found:
            found[-1] = (found[-1][0], event)
    return found


def parts(events: Sequence[Event]) -> list[tuple[int, RunPart]]:
    """The parts of a run whose steps count: the step before each part, and its `RunPart`."""
    found: list[tuple[int, RunPart]] = []
    for event in events:
        if isinstance(event, Start | Resume):
            step = max(0, event.step)  # -1 stands for a new beginning
            found = [*((before, part) for before, part in found if before < step), (step, event.part)]
    return found


def changes(events: Sequence[Event]) -> list[str]:
    """A line on the restarts, and one for each of machine, threads, versions and source tree that differs."""
    there = parts(events)
    said: tuple[tuple[str, Callable[[RunPart], str]], ...] = (
        ("resumed on another machine", lambda part: part.host.words(part.host.machine)),
        ("resumed with other threads a node", lambda part: str(part.threads)),
        ("resumed with other versions", lambda part: " ".join(map(" ".join, sorted(part.versions.items())))),
        ("resumed from another source tree", lambda part: part.git.words if part.git else ""),
    )
    changed = [_change(what, there, of) for what, of in said]
    return [line for line in (_restarted(restarts(events)), _resized(resizes(events)), *changed) if line]


def _resized(found: Sequence[Resized]) -> str:
    if not found:
        return ""
    seconds = sum(one.seconds for one in found)
    later = ", ".join(f"from step {one.step} on {one.after} ({one.cause})" for one in found)
    return f"on {found[0].before} nodes, {later}; these changes took {seconds:.1f} s outside its clocks"


def _restarted(found: Sequence[Restart]) -> str:
    if not found:
        return ""
    times = "once" if len(found) == 1 else f"{len(found)} times"
    parts = {
        "noticing": sum(one.noticing_s for one in found),
        "starting": sum(one.starting_s for one in found),
        "loading": sum(one.loading_s for one in found),
        f"{sum(one.redone_steps for one in found):,} steps again": sum(one.redone_s for one in found),
    }
    spent = ", ".join(f"{what} {seconds:.1f}" for what, seconds in parts.items())
    which = "" if len(found) == 1 else "the last time "
    return (
        f"restarted {times} after a loss, {sum(one.seconds for one in found):.1f} s outside its clocks ({spent}): "
        f"{which}{found[-1].cause}"
    )


def _change(what: str, there: Sequence[tuple[int, RunPart]], of: Callable[[RunPart], str]) -> str:
    known = [(step, of(part)) for step, part in there if of(part)]
    stretches = [next(same) for _, same in groupby(known, key=lambda pair: pair[1])]
    if len(stretches) < 2:
        return ""
    (_, first), *others = stretches
    return f"{what}: {first}, " + ", ".join(f"from step {step} on {text}" for step, text in others)
