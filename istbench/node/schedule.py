"""When a run is evaluated: the ends of its segments of training, which are ends of rounds."""

from istbench.config.interval import Interval

# Before any step was timed: enough of them to tell how long one takes.
_FIRST_STEPS = 10
# The rate of the first steps may be off; later segments are not to be ruined by it.
_LARGEST_GROWTH = 10


def segment_end(every: Interval, first: int, last: int, train_s: float, before: int, round_steps: int = 1) -> int:
    """The local step that ends the segment which starts after step `first`: the end of the round of `due_step`.

    At most `last`, which may lie inside a round. Arguments are those of `due_step`, and local steps of a round.
    """
    due = due_step(every, first, last, train_s, before)
    return min(-(-due // round_steps) * round_steps, last)


def due_step(every: Interval, first: int, last: int, train_s: float, before: int) -> int:
    """The local step after which an evaluation is due, of a segment that starts after step `first`; at most `last`.

    Seconds are turned into steps by the rate so far, so that nodes need not agree on a time after every step.

    Args:
        train_s: seconds that the first `first` steps took, the same on every node.
        before: steps of the segment before, 0 for none.
    """
    if every.steps is not None:
        return min(first - first % every.steps + every.steps, last)
    assert every.seconds is not None
    if not first or not train_s:
        return min(first + _FIRST_STEPS, last)
    steps = round(min(every.seconds * first / train_s, last))
    if before:
        steps = min(steps, before * _LARGEST_GROWTH)
    return min(first + max(1, steps), last)
