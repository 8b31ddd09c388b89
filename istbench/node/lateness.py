"""Tell the user when the next evaluation comes far later than expected: a link may be slow but alive.

`--timeout` bounds silence only. A thread of rank 0 looks at the steps once a second. It costs training nothing.
"""

import contextlib
import threading
import time
from collections import Counter, deque
from statistics import median

from istbench.base.activity import Record, current
from istbench.base.errors import UserError
from istbench.fabric import Fabric
from istbench.fabric.heartbeats import doing, waits
from istbench.node.checkpoint_steps import Totals
from istbench.node.destinations import Destinations
from istbench.results.events import Note

TIMES = 10
_LOOKS_S = 1.0
_LEAST_S = 10.0  # of training since the last evaluation: shorter delays pass before anybody reads of them
_ROUNDS = 5  # the last looks that found further rounds; a single long one says nothing about the next ones
_LONGEST_NAME = 200


class RoundSeconds:
    """Seconds of the rounds of a run, from looks at its steps, and the time to the next evaluation.

    A round ends with an exchange, so steps differ and rounds are alike. The usual seconds of a round are the least
    mean since the start of the run.
    """

    def __init__(self, round_steps: int) -> None:
        self._round_steps = round_steps
        self._before_s = self._before_rounds = 0.0
        self._usual: float | None = None
        self._recent: deque[float] = deque(maxlen=_ROUNDS)

    def begin(self, now: float, step: int, end: int) -> None:
        """Begin a segment that goes from local step `step` to an evaluation at step `end`."""
        self._started, self._first = now, step // self._round_steps
        self._seen = now, self._first
        self.expect(end)

    def expect(self, end: int) -> None:
        """Expect the evaluation of the segment at step `end` from now on."""
        self._end = -(-end // self._round_steps)

    def finish(self, now: float, step: int) -> None:
        self.look(now, step)
        self._before_s += now - self._started
        self._before_rounds += step // self._round_steps - self._first

    def look(self, now: float, step: int) -> tuple[float, float] | None:
        """Seconds from the last evaluation to the next one: as they seem now, and as usual; None if unknown."""
        rounds = step // self._round_steps
        at, seen = self._seen
        if rounds > seen:
            self._recent.append((now - at) / (rounds - seen))
            self._seen = now, rounds
            mean = (self._before_s + now - self._started) / (self._before_rounds + rounds - self._first)
            self._usual = mean if self._usual is None else min(mean, self._usual)
        if self._usual is None:
            return None
        pace = median(self._recent) if len(self._recent) == _ROUNDS else self._usual
        return now - self._started + (self._end - rounds) * pace, (self._end - self._first) * self._usual


class Lateness:
    """Watches the pace of a run, and notes once, for the user, that the next evaluation comes late.

    Only rank 0 looks. The others may call the methods too.
    """

    def __init__(self, fabric: Fabric, totals: Totals, destinations: Destinations, round_steps: int) -> None:
        self._fabric, self._totals, self._destinations = fabric, totals, destinations
        self._rounds = RoundSeconds(round_steps)
        self._waits: deque[str] = deque(maxlen=_ROUNDS)  # the operations of this rank's waits at the last looks
        self._end: int | None = None  # of the segment; None outside of one
        self._started = 0.0
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lateness", daemon=True)

    def begin(self, end: int) -> None:
        if self._fabric.rank == 0 and self._thread.ident is None:
            self._thread.start()
        with self._lock:
            self._end, self._started = end, time.perf_counter()
            self._rounds.begin(self._started, self._totals.step, end)

    def expect(self, end: int) -> None:
        with self._lock:
            self._end = end
            self._rounds.expect(end)

    def finish(self) -> None:
        with self._lock:
            self._end = None
            self._rounds.finish(time.perf_counter(), self._totals.step)

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_LOOKS_S):
            with self._lock:
                late = self._look() if self._end is not None else None
            if late is not None:
                with contextlib.suppress(UserError):  # a full disk ends the run at its next record
                    self._destinations.record(Note(message=late, urgent=True))
                return

    def _look(self) -> str | None:
        now = time.perf_counter()
        self._waits.append(_awaited(current.look(), self._fabric.recorder.waits.unawaited_s()))
        found = self._rounds.look(now, self._totals.step)
        if found is None or now - self._started < _LEAST_S:
            return None
        seems, usual = found
        if seems <= TIMES * usual:
            return None
        return (
            f"slow: the evaluation after step {self._end} seems to come {seems:.0f} s after the last one, usually "
            f"{usual:.1f} s; most of the time goes to {self._operation()}"
        )

    def _operation(self) -> str:
        """The most frequent activity of this rank in the last looks, and of the ranks that it waits for."""
        operations = [name for name in self._waits if name]
        if 2 * len(operations) <= len(self._waits):
            return f"{current.look().phase} on rank 0"
        # In a backward pass, also ranks that wait seem to compute.
        others = self._others_at_work() if current.look().waits else ""
        return f"{Counter(operations).most_common(1)[0][0][:_LONGEST_NAME]}{others}"

    def _others_at_work(self) -> str:
        try:
            signs = {
                rank: self._fabric.texts.heartbeats.sign_of(rank) for rank in range(1, self._fabric.world_size)
            }
        except RuntimeError:  # the store is lost; the main thread will report it
            return ""
        # At its first heartbeat a rank may not have begun anything.
        found = {rank: doing(sign) for rank, sign in signs.items() if not waits(sign)}
        at_work = [f"rank {rank} is {what}" for rank, what in found.items() if what]
        return f" ({'; '.join(at_work[:_ROUNDS])})" if at_work else ""


def _awaited(now: Record, unawaited_s: float) -> str:
    """The operation in which this rank waits for others; empty while it computes."""
    return now.operation if now.waits or unawaited_s > _LOOKS_S / 2 else ""
