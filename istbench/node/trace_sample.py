"""The trace of a run, gathered from all ranks and written once, with the speed of its machine."""

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from istbench.base.errors import UserError
from istbench.base.machine import busy_seconds, cores, cores_of_others
from istbench.cluster.speed import Speed, StepWork
from istbench.cluster.trace import COMPUTE, EVENT, MOST_EVENTS, POST, WORK, speed_of_all
from istbench.cluster.trace_builder import merge
from istbench.cluster.trace_file import save_trace
from istbench.fabric import Fabric
from istbench.node.effort import EFFORT
from istbench.node.machine_speed import MemoryArrays, matmul_gflops
from istbench.node.step_work import USUAL_SHAPE, USUAL_SHAPES, CountedStep, Shape

_SHAPES = 2  # smaller products of a step hardly count
_MOST_VALUES = 1 << 24  # of a matrix; larger ones are no faster, and a rank may not hold the whole model
_MOST_PRODUCTS = {"cpu": 1 << 28, "cuda": 1 << 33}  # in one matrix product: some milliseconds
_LEAST_ROWS = 64
_OF_ALL_RANKS = 6  # so many ranks or more are as precise together with one each
_MOST_MOMENTS = 16
_UNEQUAL = 1.25  # measurements of equal machines differ by less


class TraceSample:
    """Writes the events of all ranks' recorders to `path`. Every rank must call its methods alike.

    Args:
        step: the work of a local step of this rank.
        in_lab: whether all nodes are on this machine and its clock is a lab's. Then nothing measures the machine
            inside a segment, where recording begins and ends.
        apart_s: seconds between measurements while the sample grows, at least.
    """

    def __init__(
        self,
        path: Path,
        step: CountedStep,
        fabric: Fabric,
        batch_size: int,
        *,
        in_lab: bool = False,
        apart_s: float = 1.0,
    ) -> None:
        self._path, self._fabric, self._batch_size = path, fabric, batch_size
        self._work, self._shapes = step.work, step.shapes
        self._in_lab, self._apart_s = in_lab, apart_s
        self._times = min(EFFORT.repeats, -(-_OF_ALL_RANKS // fabric.world_size))
        self._saved = self._was_running = False
        self._arrays: MemoryArrays | None = None
        self._measured_at = -math.inf
        self._moments: list[list[float]] = []  # speeds of this rank: by shape, of memory, of gathering

    def start(self) -> None:
        """Measure the speed of the machine, and its load by others from now on. Call it before training."""
        mine = [size for shape in calibrated_shapes(self._shapes, self._fabric.device.type) for size in shape]
        sizes = [int(self._fabric.numbers(size)[0]) for size in mine]
        self._shapes = tuple(zip(sizes[::3], sizes[1::3], sizes[2::3], strict=True))
        self._calibrate(self._times)
        self._busy_at_start, self._cpu_at_start, self._started = _used()

    @property
    def due(self) -> bool:
        """Whether recording began or ended with the last step, so that it is time for `calibrate`."""
        running = self._fabric.recorder.running
        began_or_ended = running != self._was_running
        self._was_running = running
        return began_or_ended and not self._in_lab and len(self._moments) < _MOST_MOMENTS

    def calibrate(self) -> None:
        """Measure the speed of the machine once, without communicating."""
        device, gathering = self._fabric.device, bool(self._work.gathered)
        arrays = self._arrays or MemoryArrays(device)
        if device.type == "cpu":  # filling them again takes longer than all measurements
            self._arrays = arrays
        self._moments.append(measured(self._shapes, device, arrays, gathering=gathering))
        self._measured_at = time.perf_counter()

    def save(self, *, whole: bool, stalled_s: float = 0.0) -> str | None:
        """Write the trace, once. With `whole`, only a complete sample; otherwise the events so far.

        A sample of more than `MOST_EVENTS` keeps its first rounds.

        An incomplete sample does not replace the trace of an earlier part of the run. While the sample grows, calls
        measure the machine's speed again, `apart_s` or more after the last time. Returns the reason on rank 0 if
        the run cannot have a trace.

        stalled_s: seconds of stalls in the sample, on rank 0.
        """
        recorder = self._fabric.recorder
        if self._saved:
            return None
        if whole and not recorder.finished:
            since_s = self._fabric.numbers(time.perf_counter() - self._measured_at)[0]
            if since_s > self._apart_s and len(self._moments) < _MOST_MOMENTS:
                self._calibrate(1)
            return None
        events, rounds = recorder.events(), recorder.whole_rounds
        if not len(events):
            return None
        self._saved = True
        while (count := round(math.fsum(self._fabric.numbers(len(events))))) > MOST_EVENTS:
            if rounds == 1:
                said = f"a round has {count:,} events, more than the {MOST_EVENTS:,} of a trace"
                return said if self._fabric.rank == 0 else None
            rounds = min(rounds - 1, max(1, rounds * MOST_EVENTS // count))
            events = recorder.events(rounds)
        sizes = [int(size) for size in self._fabric.numbers(events.nbytes)]
        others = self._others_cores()
        self._calibrate(self._times)
        self._arrays = None
        speeds: dict[str, Any] = self._speeds_of_all()
        if self._fabric.several_hosts and not self._in_lab:
            # A replay knows one speed of the recording machines.
            own = speeds_of(self._shapes, self._moments)
            seconds, mean_s = (_step_seconds(found, speeds["work"]) for found in (own, speeds))
            events = rescaled(events, self._fabric.numbers(seconds), self._fabric.rank, mean_s)
        mine = torch.frombuffer(bytearray(events.tobytes()), dtype=torch.uint8).to(self._fabric.device)
        with self._fabric.accounting("control"):
            gathered = [part.cpu().numpy().tobytes() for _, part in self._fabric.gather_to_zero(mine, sizes)]
        if self._fabric.rank != 0 or (not whole and self._path.exists()):
            return None
        try:
            trace = merge(
                [np.frombuffer(part, dtype=EVENT) for part in gathered],
                batch_size=self._batch_size,
                **speeds,
                threads=torch.get_num_threads(),
                device="cuda" if self._fabric.device.type == "cuda" else "cpu",
                cores=cores(),
                others_cores=others,
                window=recorder.window,
                transport=self._fabric.uses_transport,
                warmup_steps=recorder.warmup_steps,
                warmup_state=recorder.warmup_state,
                unlike_steps=recorder.unlike_steps,
                last_bytes=recorder.last_bytes,
                stalled_s=stalled_s,
            )
        except ValueError as error:  # the ranks differ, for example if parts of a model take turns
            return str(error)
        try:
            save_trace(trace, self._path)
        except UserError as error:  # the run goes on without it
            return str(error)
        return None

    def _others_cores(self) -> float | None:
        """Cores that other processes on rank 0's machine used since `start`; None if unknown."""
        busy, cpu, now = _used()
        size = self._fabric.world_size
        here = size if self._in_lab else int(os.environ.get("LOCAL_WORLD_SIZE", size))
        own = math.fsum(self._fabric.numbers(cpu - self._cpu_at_start)[:here])
        return cores_of_others(self._busy_at_start, busy, own, now - self._started)

    def _calibrate(self, times: int) -> None:
        """Measure `times` times. All ranks measure at once, as in training: both include the cost of sharing a
        machine.
        """
        self._fabric.barrier("calibrating")
        for _ in range(times):
            self.calibrate()

    def _speeds_of_all(self) -> dict[str, object]:
        """Fields of `TraceMeta` with the speeds and the work of a rank, as means over ranks."""
        moments = [[self._mean(speed) for speed in speeds] for speeds in self._moments]
        return {
            **speeds_of(self._shapes, moments),
            "work": StepWork(
                operations=self._mean(self._work.operations),
                bytes=self._mean(self._work.bytes),
                gathered=self._mean(self._work.gathered),
            ),
        }

    def _mean(self, value: float) -> float:
        return math.fsum(self._fabric.numbers(value)) / self._fabric.world_size


def rescaled(events: NDArray[Any], seconds: Sequence[float], rank: int, mean_s: float) -> NDArray[Any]:
    """`events` of `rank` with its computing as on a machine of mean speed.

    seconds, mean_s: of the same step on the machine of each rank, and on that of mean speed. If those of the ranks
    differ by less than `_UNEQUAL`, the events stay.
    """
    if max(seconds) < _UNEQUAL * min(seconds):
        return events
    own = events.copy()
    computing = (own["code"] == COMPUTE) | ((own["code"] == POST) & (own["kind"] == WORK))
    own["seconds"][computing] *= mean_s / seconds[rank]
    return own


def _step_seconds(speeds: Mapping[str, Any], work: StepWork) -> float:
    """Seconds of a step of `work` at `speeds`, fields of `TraceMeta`."""
    memory = [speeds["memory_gb_per_s"], *filter(None, [speeds["gather_gb_per_s"]])]
    return _speed(speeds["gflops"], memory).seconds(work)


def measured(
    shapes: Sequence[Shape], device: torch.device, arrays: MemoryArrays, *, gathering: bool = False
) -> list[float]:
    """The speeds of this process now: GFLOP/s of products of `shapes`, GB/s of memory, and of gathering."""
    speeds = [matmul_gflops(*shape, device) for shape in shapes] + [arrays.stream_gb_per_s()]
    return [*speeds, *([arrays.gather_gb_per_s()] if gathering else [])]


def speeds_of(shapes: Sequence[Shape], moments: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Fields of `TraceMeta` from the `moments` at which `measured` was called."""
    names = [f"{rows}x{inner}x{columns}" for rows, inner, columns in shapes]
    medians = [statistics.median(speeds) for speeds in zip(*moments, strict=True)]
    by_moment = [_speed(dict(zip(names, speeds, strict=False)), speeds[len(names) :]) for speeds in moments]
    all_together = [moment.gflops for moment in by_moment]
    memory, *gather = medians[len(names) :]
    return {
        "gflops": dict(zip(names, medians, strict=False)),
        "gflops_range": max(all_together) / min(all_together),
        "memory_gb_per_s": memory,
        "gather_gb_per_s": gather[0] if gather else None,
        "moments": tuple(by_moment),
    }


def calibrated_shapes(shapes: Sequence[Shape], device: str) -> tuple[Shape, ...]:
    """The first two of `shapes`, the last one twice if there are fewer, cut where a product would take too long.

    On a GPU, a larger product stands for convolutions.
    """
    chosen = [*shapes[:_SHAPES]] or [USUAL_SHAPE]
    chosen = [USUAL_SHAPES[device] if shape == USUAL_SHAPE else shape for shape in chosen]
    return tuple(_cut(shape, _MOST_PRODUCTS[device]) for shape in chosen + chosen[-1:] * (_SHAPES - len(chosen)))


def _cut(shape: Shape, most: int) -> Shape:
    rows, inner, columns = shape
    inner = min(inner, _MOST_VALUES)
    columns = min(columns, max(1, _MOST_VALUES // inner))
    rows = min(rows, max(1, _MOST_VALUES // max(inner, columns)), max(_LEAST_ROWS, most // (inner * columns)))
    columns = min(columns, max(1, most // (inner * rows)))
    return rows, inner, columns


def _speed(by_shape: dict[str, float], memory: Sequence[float]) -> Speed:
    stream, *gather = memory
    return Speed(
        gflops=speed_of_all(by_shape) or 1.0,
        memory_gb_per_s=stream,
        gather_gb_per_s=gather[0] if gather else None,
    )


def _used() -> tuple[float | None, float, float]:
    """Busy seconds of this machine's cores, CPU seconds of this process, and the time."""
    return busy_seconds(), time.process_time(), time.perf_counter()
