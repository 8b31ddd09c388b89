"""Training on the clock, in segments. A segment ends with the round in which an evaluation is due."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from istbench.base.activity import current
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.fabric import Fabric
from istbench.fabric.recorder import Recorder
from istbench.methods.base import EndsWithExchange
from istbench.node.checkpoint_steps import Totals
from istbench.node.destinations import Destinations
from istbench.node.lateness import Lateness
from istbench.node.losses import Losses
from istbench.node.peak_memory import PeakMemory
from istbench.node.setup import Setup, on_device
from istbench.node.stalls import Stalls
from istbench.node.stopping import Stopping
from istbench.node.trace_sample import NoTrace, TraceSample
from istbench.node.train_clock import TrainClock
from istbench.node.training_state import OpenSegment
from istbench.node.worker_group import ALL_NODES, Pace
from istbench.workloads.base import Batch

# Before any step was timed: enough steps to tell how long one takes.
_FIRST_STEPS = 10
# The rate of the first steps may be off; it must not spoil later segments.
_LARGEST_GROWTH = 10


class Trainer:
    """Trains this rank, segment by segment, and adds steps and seconds to `totals`.

    Args:
        pace: the local steps of this group of nodes.
        segment: the segment to continue, in a resumed run that stopped inside one.
        stopping: stops training at a step on which all ranks agree; None in a run that cannot be stopped.
        sample: measures the machine where recording begins and ends.

    Attributes:
        stalls: the steps that something outside training held up.
        stopped: whether training stopped before the end of a segment.
        open_segment: that segment, which a checkpoint has to keep.
    """

    def __init__(
        self,
        config: RunConfig,
        setup: Setup,
        fabric: Fabric,
        totals: Totals,
        pace: Pace,
        *,
        segment: OpenSegment | None,
        memory: PeakMemory,
        destinations: Destinations,
        stopping: Stopping | None,
        sample: TraceSample | NoTrace | None = None,
    ) -> None:
        self._sample, self._pace, self._last_step = sample, pace, pace.local(config.steps)
        self._config, self._method, self._fabric, self._totals = config, setup.method, fabric, totals
        self._memory, self._destinations, self._stopping = memory, destinations, stopping
        self._clock = TrainClock(fabric, config.lab.dilation if config.lab else 1.0)
        self.stalls = Stalls(self._clock, fabric, destinations)
        self._lateness = (
            Lateness(fabric, totals, destinations, setup.method.round_steps) if fabric.rank == 0 else None
        )
        ahead = setup.workload.batches_ahead
        self._batches = PrefetchedBatches(setup.batch, totals.step, self._last_step, ahead, fabric.recorder)
        self._last_steps = 0  # of the last segment
        self.open_segment = segment
        self.stopped = False

    def start(self) -> None:
        """Look for stop requests from now on."""
        if self._stopping is not None:
            self._stopping.start(self._totals.step)

    def close(self) -> None:
        """Stop making batches and looking for stop requests."""
        self._batches.close()
        if self._lateness is not None:
            self._lateness.close()
        if self._stopping is not None:
            self._stopping.close()

    def train_segment(self) -> float | None:
        """Train to the next evaluation; returns the mean training loss over steps and ranks.

        None where training stops before that, after any local step.

        Raises:
            RunFailed: a loss is not finite.
        """
        first = self._totals.step
        segment = self.open_segment or OpenSegment(end=self._segment_end(), steps=0, losses=0.0)
        self.open_segment = None
        losses = Losses(self._fabric.device, (segment.steps, segment.losses), self._method.samples)
        with self._on_the_clock(), self._watched(segment.end):
            self._train_steps(segment.end, losses)
            if self._totals.step % self._method.round_steps and not self.stopped:
                self._method.close_round()
            self._method.drain()
            current.begin("ending the round of step", self._totals.step)
            self._batches.settle()
        self._last_steps = self._totals.step - first
        if self.stopped:
            self.open_segment = OpenSegment.of(segment.end, *losses.so_far())
            return None
        remedy = "; lower the learning rate (--set lr=...)" if "lr" in self._config.method_options else ""
        return losses.mean(self._fabric, first - segment.steps, remedy)

    def finish(self) -> None:
        """Make the last exchange of the run, if the method has one."""
        if isinstance(self._method, EndsWithExchange):
            with self._on_the_clock():
                self._method.finish()

    @contextmanager
    def _on_the_clock(self) -> Iterator[None]:
        """Inside, the train clock runs. Every rank adds the slowest rank's seconds to the totals."""
        fabric, totals = self._fabric, self._totals
        first = totals.step
        fabric.barrier("starting a segment")
        self._memory.start()
        self._clock.start()
        self.stalls.start()
        fabric.recorder.resume()
        yield
        seconds, computing = self._clock.elapsed(), self._clock.computing()
        self._memory.stop()
        totals.train_s += fabric.maximum(seconds)
        by_rank = fabric.numbers(computing)
        every = itertools.zip_longest(totals.computing_s, by_rank, fillvalue=0.0)
        totals.computing_s = tuple(before + now for before, now in every)
        self.stalls.end(first, seconds)

    @contextmanager
    def _watched(self, end: int) -> Iterator[None]:
        """Inside, rank 0 tells the user if the evaluation of step `end` comes far too late."""
        if self._lateness is None:
            yield
            return
        self._lateness.begin(end)
        yield
        self._lateness.finish()

    @contextmanager
    def _off_the_clock(self) -> Iterator[None]:
        """Inside, neither time nor memory counts as training."""
        self._memory.stop()
        with self._clock.paused():
            yield
        self._memory.start()
        self._fabric.recorder.resume()

    def _train_steps(self, end: int, losses: Losses) -> None:
        """Train until step `end`, until the seconds are used up, or until training has to stop."""
        for step in self._steps(end):
            if self._stopping is not None and self._stopping.reached(step):
                self.stopped = True
                return
            current.begin("computing training step", step, timed=True)
            self._method.local_step, self._method.schedule_step = step, self._pace.done(step)
            losses.add(self._method.step(on_device(self._batches.take(step), self._fabric.device)))
            self._fabric.recorder.mark("step")
            self.stalls.step()
            if self._sample is not None and self._sample.due:
                with self._off_the_clock():
                    self._sample.calibrate()
            self._destinations.step(step + 1)
            self._totals.step = step + 1

    def _steps(self, end: int) -> Iterator[int]:
        """The local steps before `end`, or before the one at which the ranks find that their seconds are used up.

        The ranks compare their clocks where an evaluation is due but has to wait for the end of its round.
        """
        limit, seconds, before = self._config.max_seconds, self._totals.train_s, self._last_steps
        first = self._totals.step
        while first < end:
            due = (
                end if limit is None else due_step(self._config.eval_every, first, end, seconds, before, self._pace)
            )
            yield from range(first, due)
            if limit is not None and due < end:
                seconds = self._totals.train_s + self._fabric.maximum(self._clock.elapsed())
                if seconds >= limit:
                    return
            first, before = due, due - first

    def _segment_end(self) -> int:
        totals, every, round_steps = self._totals, self._config.eval_every, self._method.round_steps
        return segment_end(
            every, totals.step, self._last_step, totals.train_s, self._last_steps, round_steps, self._pace
        )


class PrefetchedBatches:
    """The batches of the steps from `first` to `last` (exclusive), in order; at most `ahead` wait for their step.

    One thread makes them, one after the other, beside the training thread, and the trace records it as work. An
    error of `make` is raised where its batch is taken.
    """

    def __init__(self, make: Callable[[int], Batch], first: int, last: int, ahead: int, recorder: Recorder) -> None:
        self._make, self._next, self._last, self._ahead = make, first, last, ahead
        self._recorder = recorder
        self._waiting: deque[tuple[int, int, Future[Batch]]] = deque()
        self._maker = ThreadPoolExecutor(1, "batches") if ahead else None

    def take(self, step: int) -> Batch:
        """The batch of `step`. Steps must be taken in order."""
        if self._maker is None:
            return self._make(step)
        while len(self._waiting) <= self._ahead and self._next < self._last:
            work = self._recorder.post("work", 0)
            self._waiting.append((self._next, work, self._maker.submit(self._timed, self._next, work)))
            self._next += 1
        made, work, batch = self._waiting.popleft()
        if made != step:
            raise RuntimeError(f"batches are taken in order: step {made} is next, not {step}")
        with self._recorder.waiting(work, for_nodes=False):
            return batch.result()

    def _timed(self, step: int, work: int) -> Batch:
        started = time.thread_time()
        batch = self._make(step)
        self._recorder.worked(work, time.thread_time() - started)
        return batch

    def settle(self) -> None:
        """Wait for the batches in work, so that none is made while the train clock stands still."""
        wait([batch for _, _, batch in self._waiting])

    def close(self) -> None:
        """Stop making batches."""
        if self._maker is not None:
            self._maker.shutdown(cancel_futures=True)


def segment_end(
    every: Interval,
    first: int,
    last: int,
    train_s: float,
    before: int,
    round_steps: int = 1,
    pace: Pace = ALL_NODES,
) -> int:
    """The local step that ends the segment which starts after step `first`: the end of the round of `due_step`.

    At most `last`, which may lie inside a round. A round has `round_steps` local steps. The other arguments are
    those of `due_step`.
    """
    due = due_step(every, first, last, train_s, before, pace)
    return min(-(-due // round_steps) * round_steps, last)


def due_step(every: Interval, first: int, last: int, train_s: float, before: int, pace: Pace = ALL_NODES) -> int:
    """The local step after which an evaluation is due, in a segment that starts after step `first`; at most `last`.

    Seconds become steps by the rate so far, so that ranks need not agree on a time after every step.

    Args:
        train_s: seconds that the first `first` steps took, the same on every rank.
        before: steps of the previous segment, 0 for none. pace: of the group; `every` counts steps of all nodes.
    """
    if every.steps is not None:
        return min(pace.local(pace.done(first) // every.steps * every.steps + every.steps), last)
    assert every.seconds is not None
    if not first or not train_s:
        return min(first + _FIRST_STEPS, last)
    steps = round(min(every.seconds * first / train_s, last))
    if before:
        steps = min(steps, before * _LARGEST_GROWTH)
    return min(first + max(1, steps), last)
