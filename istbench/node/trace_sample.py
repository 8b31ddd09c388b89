"""The trace of a run, gathered from all ranks and written once, with the speed of its machine."""

import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from istbench.cluster.trace import EVENT, speed_of_all
from istbench.cluster.trace_builder import merge
from istbench.cluster.trace_file import save_trace
from istbench.fabric import Fabric
from istbench.machine import busy_seconds, cores
from istbench.node.measure import matmul_gflops
from istbench.workloads.base import Workload

_CALIBRATED_SHAPES = 2  # smaller products of a model hardly count
_CALIBRATED_VALUES = 1 << 24  # of a matrix; larger ones are no faster, and a rank may not hold the whole model
_MOST_CALIBRATIONS = 5
_LEAST_S = 0.5  # the least time to measure how busy a machine is: its clock ticks a hundred times a second


class TraceSample:
    """Writes the events of all ranks' recorders to `path`. Every rank must call its methods alike."""

    def __init__(self, path: Path, workload: Workload, fabric: Fabric, batch_size: int) -> None:
        self._path, self._workload, self._fabric, self._batch_size = path, workload, fabric, batch_size
        self._saved = False
        self._speeds: list[dict[str, float]] = []

    def start(self) -> None:
        """Measure the speed of the machine, and its load by others from now on. Call it before training."""
        self._calibrate()
        self._busy_at_start, self._cpu_at_start, self._started = _used()

    def save(self, *, whole: bool) -> str | None:
        """Write the trace, once. With `whole`, only a complete sample; otherwise the events so far.

        An incomplete sample does not replace the trace of an earlier part of the run. While the sample grows, each
        call measures the machine's speed again. Returns the reason on rank 0 if the run cannot have a trace.
        """
        recorder = self._fabric.recorder
        if self._saved:
            return None
        if whole and not recorder.finished:
            if len(self._speeds) < _MOST_CALIBRATIONS - 1:
                self._calibrate()
            return None
        events = recorder.events()
        if not len(events):
            return None
        self._saved = True
        sizes = [int(size) for size in self._fabric.numbers(events.nbytes)]
        others = self._others_cores()
        self._calibrate()
        mine = torch.frombuffer(bytearray(events.tobytes()), dtype=torch.uint8).to(self._fabric.device)
        with self._fabric.accounting("control"):
            gathered = [part.cpu().numpy().tobytes() for _, part in self._fabric.gather_to_zero(mine, sizes)]
        if self._fabric.rank != 0 or (not whole and self._path.exists()):
            return None
        try:
            trace = merge(
                [np.frombuffer(part, dtype=EVENT) for part in gathered],
                batch_size=self._batch_size,
                **_median_and_range(self._speeds),
                cores=cores(),
                others_cores=others,
                window=recorder.window,
                transport=self._fabric.uses_transport,
            )
        except ValueError as error:  # the ranks differ, for example if parts of a model take turns
            return str(error)
        save_trace(trace, self._path)
        return None

    def _others_cores(self) -> float | None:
        """Cores that other processes on rank 0's machine used since `start`; None if unknown."""
        busy, cpu, now = _used()
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self._fabric.world_size))
        own = math.fsum(self._fabric.numbers(cpu - self._cpu_at_start)[:here])
        seconds = now - self._started
        if busy is None or self._busy_at_start is None or seconds < _LEAST_S:
            return None
        return max(0.0, busy - self._busy_at_start - own) / seconds

    def _calibrate(self) -> None:
        """Measure GFLOP/s of a rank in the model's largest matrix products, by shape: the mean over ranks.

        All ranks multiply at the same time, as in training: both include the cost of sharing a machine.
        """
        with torch.device("meta"):
            model = self._workload.build_model()
        largest = _calibrated_shapes(model, self._batch_size)
        self._fabric.barrier("calibrating")
        speeds = {}
        for rows, columns in largest:
            mine = matmul_gflops(self._batch_size, columns, rows, self._fabric.device)
            mean = math.fsum(self._fabric.numbers(mine)) / self._fabric.world_size
            speeds[f"{self._batch_size}x{columns}x{rows}"] = mean
        self._speeds.append(speeds)


def _calibrated_shapes(model: nn.Module, batch_size: int) -> list[tuple[int, int]]:
    """Outputs and inputs of the largest matrix products of `model`, cut where a matrix would be too large."""
    shapes = {(p.shape[0], p[0].numel()) for p in model.parameters() if p.ndim >= 2}
    bounded = set()
    for rows, columns in sorted(shapes, key=math.prod)[-_CALIBRATED_SHAPES:]:
        inputs = min(columns, max(1, _CALIBRATED_VALUES // batch_size))
        bounded.add((min(rows, max(1, _CALIBRATED_VALUES // max(batch_size, inputs))), inputs))
    return sorted(bounded, key=math.prod)


def _used() -> tuple[float | None, float, float]:
    """Busy seconds of this machine's cores, CPU seconds of this process, and the time."""
    return busy_seconds(), time.process_time(), time.perf_counter()


def _median_and_range(speeds: list[dict[str, float]]) -> dict[str, Any]:
    by_shape = {shape: [speed[shape] for speed in speeds] for shape in speeds[0]}
    all_together = [speed for own in speeds if (speed := speed_of_all(own)) is not None]
    return {
        "gflops": {shape: statistics.median(values) for shape, values in by_shape.items()},
        "gflops_range": max(all_together) / min(all_together) if all_together else None,
    }
