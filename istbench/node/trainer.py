"""Training on the clock, in segments. A segment ends with the round in which an evaluation is due."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from istbench.base.activity import current
from istbench.base.options.run import RunConfig
from istbench.fabric import Fabric
from istbench.fabric.recorder import Recorder
from istbench.methods.base import EndsWithExchange
from istbench.node.checkpoint_steps import Totals
from istbench.node.destinations import Destinations
from istbench.node.lateness import Lateness
from istbench.node.losses import Losses
from istbench.node.peak_memory import PeakMemory
from istbench.node.schedule import EvaluationSchedule, TrainingSpeed
from istbench.node.setup import Setup, on_device
from istbench.node.stalls import Stalls
from istbench.node.stopping import Stopping
from istbench.node.trace_sample import TraceSample
from istbench.node.train_clock import TrainClock
from istbench.node.training_state import OpenSegment
from istbench.node.worker_group import Pace
from istbench.workloads.base import Batch


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
        sample: TraceSample | None = None,
    ) -> None:
        self._sample, self._pace, last = sample, pace, pace.local(config.steps)
        self._config, self._method, self._fabric, self._totals = config, setup.method, fabric, totals
        self._memory, self._stopping = memory, stopping
        self._clock = TrainClock(fabric, config.lab.dilation if config.lab else 1.0)
        self.stalls = Stalls(self._clock, fabric, destinations)
        self._lateness = Lateness(fabric, totals, destinations, setup.method.round_steps)
        ahead = setup.workload.batches_ahead
        self._batches = PrefetchedBatches(setup.batch, totals.step, last, ahead, fabric.recorder)
        self._schedule = EvaluationSchedule(
            every=config.eval_every, last=last, round_steps=setup.method.round_steps, pace=pace,
            max_seconds=config.max_seconds,
        )  # fmt: skip
        self._speed = TrainingSpeed(totals.step, totals.train_s)  # of the last segment, or before a resume
        self.open_segment = segment
        self.stopped = False

    def start(self) -> None:
        """Look for stop requests from now on."""
        if self._stopping is not None:
            self._stopping.start(self._totals.step)

    def close(self) -> None:
        """Stop making batches and looking for stop requests."""
        self._batches.close()
        self._lateness.close()
        if self._stopping is not None:
            self._stopping.close()

    def train_segment(self) -> float | None:
        """Train to the next evaluation; returns the mean training loss over steps and ranks.

        None where training stops before that, after any local step.

        Raises:
            RunFailed: a loss is not finite.
        """
        first, began_s = self._totals.step, self._totals.train_s
        segment = self.open_segment
        if segment is None:
            due_s = self._schedule.due_s(began_s)
            end = self._schedule.end(first, began_s, due_s, self._speed)
            segment = OpenSegment(end=end, due_s=due_s, steps=0, losses=0.0)
        self.open_segment, self._end = None, segment.end
        losses = Losses(self._fabric.device, (segment.steps, segment.losses), self._method.samples)
        with self._on_the_clock():
            self._lateness.begin(segment.end)
            self._train_steps(segment, losses)
            if self._totals.step % self._method.round_steps and not self.stopped:
                self._method.close_round()
            self._method.drain()
            current.begin("ending the round of step", self._totals.step)
            self._batches.settle()
            self._lateness.finish()
        self._speed = TrainingSpeed(self._totals.step - first, self._totals.train_s - began_s)
        if self.stopped:
            self.open_segment = OpenSegment.of(self._end, segment.due_s, *losses.so_far())
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
    def _off_the_clock(self) -> Iterator[None]:
        """Inside, neither time nor memory counts as training."""
        self._memory.stop()
        with self._clock.paused():
            yield
        self._memory.start()
        self._fabric.recorder.resume()

    def _train_steps(self, segment: OpenSegment, losses: Losses) -> None:
        """Train to the end of `segment`, until the seconds are used up, or until training has to stop."""
        totals = self._totals
        steps = self._schedule.steps(
            segment.end, segment.due_s, totals.step, totals.train_s, self._speed, self._agreed_s, self._expect
        )
        for step in steps:
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
            current.finish(step + 1)
            self._totals.step = step + 1

    def _agreed_s(self) -> float:
        """The train seconds so far; every rank must call it."""
        seconds = self._totals.train_s + self._fabric.maximum(self._clock.elapsed())
        self._fabric.recorder.resume()
        return seconds

    def _expect(self, end: int) -> None:
        """Note that the segment now seems to end at step `end`."""
        self._end = end
        self._lateness.expect(end)


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
        if self._maker is not None:
            self._maker.shutdown(cancel_futures=True)
