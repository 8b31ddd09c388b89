"""Find stalls: local steps that something outside training held up, such as a link that was down.

A step's seconds are those of the train clock, the maximum over ranks. They go from the end of the last rank in the
step before to the end of the last rank in this one, and add up to `train_s`. So a stall costs the seconds of its
step beyond the usual ones.

Steps of a kind are alike. The kind is the number of waits for other ranks, in powers of two. It tells steps that
exchange from steps that do not, in every method. The work after the last step of a segment is a kind of its own.
"""

import json
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np
import torch
from numpy.typing import NDArray

from istbench.base.activity import current
from istbench.fabric import Fabric
from istbench.node.destinations import Destinations
from istbench.node.train_clock import TrainClock
from istbench.results.events import Stall

TIMES = 20
LEAST_S = 1.0
"""A shared machine delays a step by tenths of a second: its scheduler, page cache, TCP's first retransmissions."""

_ENDING = 0  # the kind of the work after the last step; other kinds have at least one tick
_ENOUGH = 4  # steps of a kind that tell their usual seconds; at the end of a run, two
_KEPT = 99  # seconds of each kind from earlier segments
_NAMED = 8  # stalls of a segment with an event each; one event sums up the others
_LONGEST_NAME = 200
_WAKES_S = 0.5  # until a rank's heartbeat thread has noticed a pause


@dataclass(frozen=True, kw_only=True)
class LongStep:
    """A step that may be a stall.

    Attributes:
        place: in its segment. step: local steps done after it. kind: see above.
        seconds: on the train clock. computed_s: most CPU seconds of a rank.
        rank, operation: as in `Stall`. recorded: whether it is in the trace.
        lost_s: seconds that it cost as a stall; 0 until it is judged.
    """

    place: int
    step: int
    kind: int
    seconds: float
    computed_s: float
    rank: int | None = None
    operation: str = ""
    recorded: bool = False
    lost_s: float = 0.0


class UsualSeconds:
    """The usual seconds of a step of each kind, and the long steps that cannot be judged yet."""

    def __init__(self) -> None:
        self._seconds: dict[int, list[float]] = {}
        self._computed: dict[int, list[float]] = {}
        self.open: list[LongStep] = []

    def add(
        self, first: int, seconds: NDArray[np.float64], kinds: NDArray[np.int64], computed: NDArray[np.float64]
    ) -> list[LongStep]:
        """Add the steps of a segment that starts after step `first`. Returns its long steps, the longest first.

        The last one of `seconds` is the work after the last step.
        """
        for kind in np.unique(kinds).tolist():
            alike = kinds == kind
            for known, new in ((self._seconds, seconds), (self._computed, computed)):
                known[kind] = known.get(kind, [])[-_KEPT:] + new[alike].tolist()
        last = first + len(seconds) - 1
        found = [
            LongStep(
                place=place,
                step=min(first + place + 1, last),
                kind=int(kinds[place]),
                seconds=float(seconds[place]),
                computed_s=float(computed[place]),
            )
            for place in np.flatnonzero(seconds >= LEAST_S).tolist()
        ]
        return sorted((long for long in found if self.lost(long) != 0), key=lambda long: -long.seconds)

    def judged(self, longs: Iterable[LongStep], *, final: bool = False) -> list[LongStep]:
        """The stalls among `longs` and the open ones. Those that cannot be judged yet stay open."""
        waiting, self.open = [*self.open, *longs], []
        found = []
        for long in waiting:
            lost = self.lost(long, 2 if final else _ENOUGH)
            if lost is None:
                self.open.append(long)
            elif lost:
                found.append(replace(long, lost_s=lost))
        return found

    def lost(self, long: LongStep, enough: int = _ENOUGH) -> float | None:
        """The seconds that `long` cost; 0 if it is no stall, None with fewer than `enough` steps of its kind.

        A step that computes is no stall, such as one that rebuilds hash tables or collects garbage.
        """
        seconds = self._seconds[long.kind]
        if len(seconds) < enough:
            return None
        usual = median_low(seconds)
        lost = long.seconds - usual
        computed = long.computed_s - median_low(self._computed[long.kind])
        stalls = lost >= LEAST_S and long.seconds > TIMES * usual and computed < lost / 2
        return lost if stalls else 0.0


@dataclass(frozen=True, kw_only=True)
class _LocalStep:
    """A long step of this rank: when it began and ended on this machine, and its activity."""

    began: float
    ended: float
    waited_s: float
    phase: str
    operation: str
    recorded: bool


class Stalls:
    """Watches the steps of this rank, and records the stalls of all ranks in `destinations`, which only rank 0 has.

    Attributes:
        in_trace_s: seconds of stalls in the recorded rounds; known on rank 0.
    """

    def __init__(self, clock: TrainClock, fabric: Fabric, destinations: Destinations) -> None:
        self._clock, self._fabric, self._destinations = clock, fabric, destinations
        self._on_host = fabric.device.type == "cpu"
        self._usual = UsualSeconds()
        self.in_trace_s = 0.0

    def start(self) -> None:
        """Start a segment, with the train clock."""
        self._ends, self._computed, self._kinds = array("d"), array("d"), array("q")
        self._long: dict[int, _LocalStep] = {}
        self._before = 0.0
        self._ticks, self._cpu, self._waited = current.ticks, self._cpu_s(), self._waited_s()
        self._recording = self._fabric.recorder.running

    def step(self) -> None:
        """A local step has ended. Call it on the clock, before the next one begins."""
        now, ticks = self._clock.passed(), current.ticks
        self._add(now, (ticks - self._ticks).bit_length())
        self._ticks = ticks

    def _add(self, now: float, kind: int) -> None:
        cpu, waited, longest = self._cpu_s(), self._waited_s(), current.longest_wait()
        if now - self._before >= LEAST_S:
            ended, lasted = time.perf_counter(), (now - self._before) * self._clock.dilation
            activity = current.look()
            self._long[len(self._ends)] = _LocalStep(
                began=ended - lasted,
                ended=ended,
                waited_s=waited - self._waited,
                phase=activity.phase,
                operation=longest or activity.operation,
                recorded=self._recording,
            )
        self._ends.append(now)
        self._kinds.append(kind)
        self._computed.append(cpu - self._cpu)
        self._before, self._cpu, self._waited = now, cpu, waited
        self._recording = self._fabric.recorder.running

    def end(self, first: int, seconds: float) -> None:
        """Judge the segment that started after step `first` and took this rank `seconds`. Every rank calls it."""
        self._add(seconds, _ENDING)
        rows = np.array([self._ends, self._kinds, self._computed], dtype=np.float64)
        ends, kinds, computed = self._fabric.maxima(torch.from_numpy(rows)).numpy()
        longs = self._usual.add(first, np.diff(ends, prepend=0.0), kinds.astype(np.int64), computed)
        if longs:
            own = json.dumps([self._account(long.place) for long in longs[:_NAMED]])
            by_rank = [json.loads(account) for account in self._fabric.texts.gather(own)]
            for place, long in enumerate(longs[:_NAMED]):
                longs[place] = _with_cause(long, [account[place] for account in by_rank])
        self._record(self._usual.judged(longs))

    def finish(self) -> None:
        """Judge the steps that are still open: no further step will tell the usual seconds of their kind."""
        self._record(self._usual.judged((), final=True))

    def _record(self, found: Sequence[LongStep]) -> None:
        by_size = sorted(found, key=lambda stall: -stall.lost_s)
        for stall in sorted(by_size[:_NAMED], key=lambda stall: stall.step):
            self._destinations.record(
                Stall(step=stall.step, seconds=stall.lost_s, operation=stall.operation, rank=stall.rank)
            )
        rest = by_size[_NAMED:]
        if rest:
            seconds, last = sum(stall.lost_s for stall in rest), max(stall.step for stall in rest)
            self._destinations.record(Stall(step=last, seconds=seconds, operation="", count=len(rest)))
        self.in_trace_s += sum(stall.lost_s for stall in found if stall.recorded)

    def _account(self, place: int) -> list[object]:
        """Seconds in which this rank held up the others in step `place`, seconds of waiting, both activities."""
        own = self._long.get(place)
        if own is None:
            return [0.0, 0.0, "", "", False]
        paused = self._fabric.texts.heartbeats.paused_s(own.began, own.ended + _WAKES_S)
        # A GPU's queue hides the waits from the host, so only a pause of the host is known there.
        working = own.ended - own.began - own.waited_s if self._on_host else 0.0
        names = (text[:_LONGEST_NAME] for text in (own.phase, own.operation))
        return [max(paused, working), own.waited_s, *names, own.recorded]

    def _cpu_s(self) -> float:
        """CPU seconds of this process. On a GPU 0: the host also computes while it waits."""
        return time.process_time() if self._on_host else 0.0

    def _waited_s(self) -> float:
        return self._fabric.recorder.waits.seconds() if self._on_host else 0.0


def _with_cause(long: LongStep, accounts: Sequence[tuple[float, float, str, str, bool]]) -> LongStep:
    """`long` with its cause, from the `_account` of each rank; as it is on a rank without accounts."""
    if not accounts:
        return long
    rank, (held_up, _, phase, _, _) = max(enumerate(accounts), key=lambda account: account[1][0])
    recorded = any(account[-1] for account in accounts)
    if held_up >= long.seconds / 2:
        return replace(long, rank=rank, operation=phase, recorded=recorded)
    _, _, phase, operation, _ = max(accounts, key=lambda account: account[1])
    return replace(long, operation=operation or phase, recorded=recorded)
