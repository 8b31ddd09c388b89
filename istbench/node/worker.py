"""One node's life: build, warm up, train, evaluate, checkpoint. It owns the clock."""

import gc
import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from istbench.cluster.trace import EVENT, merge
from istbench.cluster.trace_file import save_trace
from istbench.config import RunConfig, build_options
from istbench.fabric import Fabric, connect
from istbench.methods.base import Method
from istbench.node import checkpoint
from istbench.node.evaluate import calibrated, evaluate
from istbench.node.measure import PeakMemory, TrainClock, matmul_gflops
from istbench.node.step_counter import StepCounter
from istbench.registry import load_method, load_workload
from istbench.results.store import RunDirectory
from istbench.seeds import derived_seed
from istbench.workloads.base import Batch, DataSource, Workload
from istbench.workloads.batches import ShardedBatches


def train_cell(run_path: str, scratch: str) -> None:
    """Train the cell whose header lies in `run_path`, as the rank that the environment names.

    Rank 0 says in `scratch` how far it is. Continues from the cell's checkpoint where there is one.
    """
    run = RunDirectory(Path(run_path))
    header = run.header()
    config = RunConfig.from_json(header["config"])
    workload_type = load_workload(config.workload, config.plugins)
    workload = workload_type(
        build_options(workload_type.Options, config.workload_options, f"workload {config.workload!r}", {})
    )
    workload.open(DataSource.from_json(header["data_source"]))
    latency_s = (config.lab or {}).get("fabric_latency_s", 0.0)
    with closing(connect(device=config.device, timeout_s=config.timeout_s, latency_s=latency_s)) as fabric:
        counter = StepCounter(Path(scratch)) if fabric.rank == 0 else None
        Node(run, config, workload, fabric, counter).live()


@dataclass
class Totals:
    """What a run has done so far, over all its resumptions; the same on every node."""

    step: int = 0
    train_s: float = 0.0
    wall_s: float = 0.0
    bytes_sent: float = 0.0
    bytes_received: float = 0.0


_CALIBRATED_SHAPES = 2  # a model's smaller products hardly count


class Node:
    """One rank of one run."""

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        workload: Workload,
        fabric: Fabric,
        counter: StepCounter | None,
    ) -> None:
        self._run, self._config, self._workload, self._fabric = run, config, workload, fabric
        self._lead = fabric.rank == 0
        self._clock = TrainClock(fabric.device, (config.lab or {}).get("dilation", 1.0))
        self._totals = Totals()
        self._method_type = load_method(config.method, config.plugins)
        replicated = self._method_type.batches == "replicated"
        self._batches = ShardedBatches(
            workload.train_size,
            config.batch_size,
            rank=0 if replicated else fabric.rank,
            world_size=1 if replicated else config.nodes,
            seed=config.seed,
        )
        self._samples_a_step = config.batch_size * (1 if replicated else config.nodes)
        self._counter = counter
        self._traced = self._told = False

    def live(self) -> None:
        """Train to the end of the budget, evaluating and checkpointing on the way."""
        self._all_threads = torch.get_num_threads()
        torch.set_num_threads(self._config.threads)
        torch.manual_seed(derived_seed(self._config.seed, "node", self._fabric.rank))
        self._warm_up()
        self._memory = PeakMemory(self._fabric.device)
        self._method = self._build_method()
        self._resume()
        self._wall_started = time.perf_counter() - self._totals.wall_s
        self._saved = time.perf_counter()
        for traffic in self._fabric.traffic.values():
            traffic.sent = traffic.received = 0
        finished = self._totals.step == 0 and self._evaluate(float("nan"))
        while not finished and self._totals.step < self._config.steps:
            finished = self._evaluate(self._train_segment())
            self._tell()
            self._save_trace(whole=True)
            self._save_if_due(finished)
        self._save_trace(whole=False)
        self._finish()

    def _build_method(self) -> Method:
        what = f"method {self._config.method!r}"
        options = build_options(self._method_type.Options, self._config.method_options, what, {})
        method = self._method_type(options, seed=self._config.seed)
        with torch.device("meta"):
            model = self._workload.build_model()
        method.setup(model, self._workload, self._fabric)
        return method

    def _warm_up(self) -> None:
        """One step on throw-away weights, so that the clock starts on warm kernels and connections."""
        state = torch.get_rng_state()
        self._build_method().step(self._batch(0))
        torch.set_rng_state(state)
        gc.collect()
        self._fabric.barrier("warming up")

    def _batch(self, step: int) -> Batch:
        inputs, targets = self._workload.train_batch(self._batches.indices(step), self._batches.generator(step))
        device = self._fabric.device
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def _train_segment(self) -> float:
        """Train to the next evaluation, on the clock; returns the mean training loss over steps and nodes."""
        every, first = self._config.eval_every, self._totals.step
        last = min(first - first % every + every, self._config.steps)
        losses = torch.zeros((), dtype=torch.float64, device=self._fabric.device)
        self._fabric.barrier("starting a segment")
        self._memory.start()
        self._clock.start()
        self._fabric.recorder.resume()
        for step in range(first, last):
            losses += self._method.step(self._batch(step))
            self._fabric.recorder.mark("step")
            if self._counter:
                self._counter.set(step + 1)
        self._method.drain()
        seconds = self._clock.stop()
        self._memory.stop()
        self._totals.step = last
        self._totals.train_s += self._fabric.maximum(seconds)
        return self._fabric.total(losses.item()) / (last - first) / self._config.nodes

    def _evaluate(self, train_loss: float) -> bool:
        """Assemble and evaluate, off the clock, and record it; returns whether the run is to stop here."""
        started = time.perf_counter()
        with self._fabric.accounting("assemble"):
            model = self._method.assemble()
        assembled = time.perf_counter()
        metrics = {} if model is None else self._metrics(model)
        self._fabric.follow_zero()
        self._count_bytes()
        totals, config = self._totals, self._config
        totals.wall_s = time.perf_counter() - self._wall_started
        reached = metrics.get(self._workload.metric, 0.0) >= (config.target or float("inf"))
        late = totals.train_s >= (config.max_seconds or float("inf"))
        if self._lead:
            self._run.append(
                {
                    "event": "evaluation",
                    "step": totals.step,
                    "samples": totals.step * self._samples_a_step,
                    "train_s": totals.train_s,
                    "wall_s": totals.wall_s,
                    "assemble_s": assembled - started,
                    "evaluate_s": time.perf_counter() - assembled,
                    "bytes_sent_per_node": round(totals.bytes_sent),
                    "bytes_received_per_node": round(totals.bytes_received),
                    "train_loss": train_loss,
                    "metrics": metrics,
                }
            )
        return self._fabric.maximum(float(reached or late)) > 0

    def _metrics(self, model: nn.Module) -> dict[str, float]:
        with self._calibrated(model):
            return evaluate(model, self._workload, self._fabric.device)

    @contextmanager
    def _calibrated(self, model: nn.Module) -> Iterator[None]:
        """`model` as it is evaluated. By all cores, the others wait: as many for any number of nodes."""
        torch.set_num_threads(self._all_threads)
        try:
            with calibrated(model, self._workload, self._config.seed, self._fabric.device):
                yield
        finally:
            torch.set_num_threads(self._config.threads)

    def _tell(self) -> None:
        """Record the method's note, once."""
        if self._lead and not self._told and self._method.note():
            self._run.append({"event": "note", "message": self._method.note()})
        self._told = True

    def _count_bytes(self) -> None:
        """Add the training traffic since the last count, of the busiest node, to the totals."""
        traffic = self._fabric.traffic["training"]
        self._totals.bytes_sent += self._fabric.maximum(traffic.sent)
        self._totals.bytes_received += self._fabric.maximum(traffic.received)
        traffic.sent = traffic.received = 0

    def _save_if_due(self, finished: bool) -> None:
        if finished or self._totals.step >= self._config.steps:
            return
        due = time.perf_counter() - self._saved >= self._config.checkpoint_every_s
        if self._fabric.maximum(float(due)) == 0:
            return
        state = {"method": self._method.state_dict(), "random": torch.get_rng_state()}
        checkpoint.write_rank(self._run.checkpoint, self._totals.step, self._fabric.rank, state)
        self._fabric.barrier("writing a checkpoint")
        if self._lead:
            checkpoint.publish(self._run.checkpoint, self._totals.step, vars(self._totals))
        self._saved = time.perf_counter()

    def _resume(self) -> None:
        meta = checkpoint.latest(self._run.checkpoint)
        if meta is None:
            return
        self._totals = Totals(**meta)
        state = checkpoint.read_rank(self._run.checkpoint, self._totals.step, self._fabric.rank)
        self._method.load_state_dict(state["method"])
        torch.set_rng_state(state["random"])

    def _finish(self) -> None:
        """Write the run's result into its header."""
        peak = self._fabric.maximum(self._memory.peak or 0)
        with self._fabric.accounting("assemble"):
            model = self._method.assemble()
        if model is None:
            return
        with self._calibrated(model):
            digest = weights_sha256(model)
        totals = self._totals
        evaluations = [event for event in self._run.events() if event["event"] == "evaluation"]
        self._run.update(
            result={
                "steps": totals.step,
                "samples": totals.step * self._samples_a_step,
                "train_s": totals.train_s,
                "wall_s": totals.wall_s,
                "train_loss": evaluations[-1]["train_loss"],
                "final": evaluations[-1]["metrics"],
                "bytes_sent_per_node": round(totals.bytes_sent),
                "bytes_received_per_node": round(totals.bytes_received),
                "peak_memory_bytes_per_node": int(peak) or None,
                "weights_sha256": digest,
            }
        )

    def _save_trace(self, *, whole: bool) -> None:
        """Write the run's trace, once: as soon as the sample is whole, or at the end what there is of it."""
        recorder = self._fabric.recorder
        if self._traced or (whole and not recorder.finished):
            return
        events = recorder.events()
        if not len(events):
            return
        self._traced = True
        sizes = [int(size) for size in self._fabric.numbers(events.nbytes)]
        gflops = self._calibration()
        mine = torch.frombuffer(bytearray(events.tobytes()), dtype=torch.uint8).to(self._fabric.device)
        with self._fabric.accounting("control"):
            gathered = [part.cpu().numpy().tobytes() for _, part in self._fabric.gather_to_zero(mine, sizes)]
        if self._lead:
            nodes = [np.frombuffer(part, dtype=EVENT) for part in gathered]
            save_trace(merge(nodes, {"batch_size": self._config.batch_size, "gflops": gflops}), self._run.trace)

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
            mine = matmul_gflops(self._config.batch_size, columns, rows, self._fabric.device)
            mean = math.fsum(self._fabric.numbers(mine)) / self._config.nodes
            speeds[f"{self._config.batch_size}x{columns}x{rows}"] = mean
        return speeds


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the bytes of all parameters and buffers of `model`, in name order."""
    digest = hashlib.sha256()
    tensors: dict[str, Tensor] = model.state_dict()
    for name in sorted(tensors):
        digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
