"""When evaluations fall: after local steps, or after train seconds, on which the ranks agree at few steps."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from istbench.base.options.interval import Interval
from istbench.node.worker_group import ALL_NODES, Pace

# Before any step was timed: enough steps to tell how long one takes.
_FIRST_STEPS = 10
# The speed of few steps may be off; it must not hold for many.
_LARGEST_GROWTH = 10
# The ranks compare their clocks after this share of the steps that seem left; in the last part of an interval after
# all of them. So an evaluation is late by some of that part, unless steps become over 1.5 times slower at once.
_SHARE, _LAST_PART = 2 / 3, 1 / 8


class TrainingSpeed(NamedTuple):
    """The speed of training: a number of local steps, and their train seconds. Zeros if it is unknown."""

    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class EvaluationSchedule:
    """The steps and train seconds at which evaluations of a run fall. A segment goes from one to the next.

    Attributes:
        every: the interval; its steps are those of all nodes. last: the last local step of the run.
        round_steps: local steps of a round. pace: of the group of nodes.
        max_seconds: the train seconds of the run. The ranks also compare their clocks inside a round then.
    """

    every: Interval
    last: int
    round_steps: int = 1
    pace: Pace = ALL_NODES
    max_seconds: float | None = None

    def due_s(self, train_s: float) -> float | None:
        """The train seconds of the next evaluation, a multiple of the interval; None if it counts steps."""
        every_s = self.every.seconds
        return None if every_s is None else (math.floor(train_s / every_s) + 1) * every_s

    def end(self, step: int, train_s: float, due_s: float | None, speed: TrainingSpeed) -> int:
        """The local step that ends the segment which starts after `step`; at most `last`, which may be in a round.

        It ends the round in which the evaluation is due. If that is at train seconds `due_s`, it is an estimate.
        """
        due = self._due_step(step) if due_s is None else step + self._steps_in(due_s - train_s, speed)
        return min(self._round_end(due), self.last)

    def steps(
        self,
        end: int,
        due_s: float | None,
        step: int,
        train_s: float,
        speed: TrainingSpeed,
        agreed_s: Callable[[], float],
        expect: Callable[[int], None],
    ) -> Iterator[int]:
        """The local steps after `step`, done at `train_s`, to the end of their segment; the same on all ranks.

        That is step `end`, or the end of the round in which train seconds `due_s` pass, if they are given. It is
        earlier if the seconds of the run are used up where the ranks compare their clocks.

        Args:
            speed: of the training before. agreed_s: compares the clocks, and returns the train seconds so far.
            expect: called with each new estimate of the end.
        """
        while True:
            if due_s is not None:
                end = self.end(step, train_s, due_s, speed)
                expect(end)
            look = self._look(step, train_s, due_s, end, speed)
            yield from range(step, look)
            if look == (self.last if due_s is not None else end):
                return
            now_s = agreed_s()
            if self.max_seconds is not None and now_s >= self.max_seconds:
                return
            if due_s is not None and now_s >= due_s and look % self.round_steps == 0:
                return
            speed = TrainingSpeed(look - step, now_s - train_s)
            step, train_s = look, now_s

    def _look(self, step: int, train_s: float, due_s: float | None, end: int, speed: TrainingSpeed) -> int:
        """The step up to `end` after which the ranks compare their clocks next; `end` if they do not."""
        if due_s is None:
            return end if self.max_seconds is None else min(self._due_step(step), end)
        left_s = due_s - train_s
        if left_s <= 0:  # inside a round
            left_s = (self.due_s(train_s) or 0.0) - train_s
        whole = self._steps_in(left_s, speed)
        assert self.every.seconds is not None
        final = not speed.seconds or left_s <= _LAST_PART * self.every.seconds
        look = self._round_end(step + (whole if final else math.ceil(_SHARE * whole)))
        return min(look, end) if self.max_seconds is None else min(look, step + whole, end)

    def _due_step(self, step: int) -> int:
        """The local step after `step` after which an evaluation is due, by steps of all nodes."""
        every = self.every.steps
        assert every is not None
        return self.pace.local(self.pace.done(step) // every * every + every)

    def _steps_in(self, seconds: float, speed: TrainingSpeed) -> int:
        """The local steps in so many seconds at `speed`; at least one, and not many more than those of `speed`."""
        if not speed.steps or not speed.seconds:
            return _FIRST_STEPS
        steps = min(seconds * speed.steps / speed.seconds, _LARGEST_GROWTH * speed.steps)
        return max(1, math.ceil(steps))

    def _round_end(self, step: int) -> int:
        return -(-step // self.round_steps) * self.round_steps
