"""The stalls of a run: time in `train_s` in which something outside training held it up."""

from collections.abc import Iterable

from istbench.results.events import Event, Resume, Stall, Start


def stalls_of(events: Iterable[Event]) -> tuple[Stall, ...]:
    """The stalls in the steps that count. A run that resumed at step s has lost those after s, with their time."""
    kept: list[Stall] = []
    for event in events:
        if isinstance(event, Start):
            kept = []
        elif isinstance(event, Resume):
            kept = [stall for stall in kept if stall.step <= event.step]
        elif isinstance(event, Stall):
            kept.append(event)
    return tuple(kept)
