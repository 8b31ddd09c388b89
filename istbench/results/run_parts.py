"""Machines, threads, versions and source trees of the parts of a resumed run."""

from collections.abc import Callable, Sequence
from itertools import groupby

from istbench.results.events import Event, Resume, RunPart, Start


def parts(events: Sequence[Event]) -> list[tuple[int, RunPart]]:
    """The parts of a run whose steps count: the step before each part, and its `RunPart`."""
    found: list[tuple[int, RunPart]] = []
    for event in events:
        if isinstance(event, Start | Resume):
            step = max(0, event.step)  # -1 stands for a new beginning
            found = [(before, part) for before, part in found if before < step]
            found += [] if event.part is None else [(step, event.part)]
    return found


def changes(events: Sequence[Event]) -> list[str]:
    """A line for each of machine, threads, versions and source tree that differs between the parts of a run."""
    there = parts(events)
    said = (
        ("resumed on another machine", _machine),
        ("resumed with other threads a node", lambda part: str(part.threads)),
        ("resumed with other versions", _versions),
        ("resumed from another source tree", _source),
    )
    return [line for what, of in said if (line := _change(what, there, of))]


def _change(what: str, there: Sequence[tuple[int, RunPart]], of: Callable[[RunPart], str]) -> str:
    known = [(step, of(part)) for step, part in there if of(part)]
    stretches = [next(same) for _, same in groupby(known, key=lambda pair: pair[1])]
    if len(stretches) < 2:
        return ""
    (_, first), *others = stretches
    return f"{what}: {first}, " + ", ".join(f"from step {step} on {text}" for step, text in others)


def _machine(part: RunPart) -> str:
    host = part.host
    about = [host.cores_words, host.machine, host.lab or ""]
    return f"{host.name} ({', '.join(filter(None, about))})" if any(about) else host.name


def _versions(part: RunPart) -> str:
    return " ".join(f"{name} {version}" for name, version in sorted(part.versions.items()))


def _source(part: RunPart) -> str:
    return "" if part.git is None else part.git.commit[:12] + (" with changes" if part.git.dirty else "")
