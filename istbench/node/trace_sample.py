"""The run's trace: gathered from all nodes and written once, with the speed of the machine it was recorded on."""

import math
from pathlib import Path

import numpy as np
import torch

from istbench.cluster.trace import EVENT, merge
from istbench.cluster.trace_file import save_trace
from istbench.fabric import Fabric
from istbench.node.measure import matmul_gflops
from istbench.workloads.base import Workload

_CALIBRATED_SHAPES = 2  # a model's smaller products hardly count


class TraceSample:
    """What this node's recorder has recorded, on its way to `path`. Every node must call `save` alike."""

    def __init__(self, path: Path, workload: Workload, fabric: Fabric, batch_size: int) -> None:
        self._path, self._workload, self._fabric, self._batch_size = path, workload, fabric, batch_size
        self._saved = False

    def save(self, *, whole: bool) -> None:
        """Write the trace, once: where `whole`, only when the sample is complete, else what there is of it."""
        recorder = self._fabric.recorder
        if self._saved or (whole and not recorder.finished):
            return
        events = recorder.events()
        if not len(events):
            return
        self._saved = True
        sizes = [int(size) for size in self._fabric.numbers(events.nbytes)]
        gflops = self._calibration()
        mine = torch.frombuffer(bytearray(events.tobytes()), dtype=torch.uint8).to(self._fabric.device)
        with self._fabric.accounting("control"):
            gathered = [part.cpu().numpy().tobytes() for _, part in self._fabric.gather_to_zero(mine, sizes)]
        if self._fabric.rank == 0:
            nodes = [np.frombuffer(part, dtype=EVENT) for part in gathered]
            trace = merge(
                nodes,
                gflops=gflops,
                batch_size=self._batch_size,
                window=recorder.window,
                transport=self._fabric.uses_transport,
            )
            save_trace(trace, self._path)

    def _calibration(self) -> dict[str, float]:
        """GFLOP/s of a node in the model's largest matrix products, by shape, the mean over nodes.

        All nodes multiply at once, as they train at once: what sharing a machine costs is in both alike.
        """
        with torch.device("meta"):
            model = self._workload.build_model()
        shapes = {(p.shape[0], p[0].numel()) for p in model.parameters() if p.ndim >= 2}
        largest = sorted(shapes, key=math.prod)[-_CALIBRATED_SHAPES:]
        self._fabric.barrier("calibrating")
        speeds = {}
        for rows, columns in largest:
            mine = matmul_gflops(self._batch_size, columns, rows, self._fabric.device)
            mean = math.fsum(self._fabric.numbers(mine)) / self._fabric.world_size
            speeds[f"{self._batch_size}x{columns}x{rows}"] = mean
        return speeds
