"""One node's life: build, warm up, train, evaluate, checkpoint. It owns the clock."""

import copy
import gc
import math
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

from istbench.activity import current
from istbench.config.numbers import Natural
from istbench.config.run import RunConfig
from istbench.door import convert, path_text
from istbench.errors import UserError
from istbench.fabric import Fabric, connect
from istbench.machine import host_name, own_cores
from istbench.methods.base import Method
from istbench.node import checkpoint
from istbench.node.ahead import BatchesAhead
from istbench.node.computed import compiling, computed
from istbench.node.digest import sha256_of
from istbench.node.full_model import FullModel, full_model
from istbench.node.losses import Losses
from istbench.node.measure import PeakMemory, TrainClock, node_seconds
from istbench.node.parts import Parts
from istbench.node.progress import StepCounter
from istbench.node.published import Totals
from istbench.node.rehearsal import rehearse
from istbench.node.schedule import due_step, segment_end
from istbench.node.shared_evaluation import Sharing, can_be_shared
from istbench.node.sinks import RunFiles, Sinks
from istbench.node.stopping import Stopping, StopRequest
from istbench.node.trace_sample import TraceSample
from istbench.node.weights_file import save_weights
from istbench.registry import build_method, build_workload, load_method
from istbench.results.events import Evaluation, Note, Part, Resume
from istbench.results.header import Metrics, Result
from istbench.results.store import RunDirectory
from istbench.seeds import derived_seed
from istbench.workloads.base import Batch, Workload
from istbench.workloads.batches import ShardedBatches


def train_cell(run_path: str, scratch: str) -> None:
    """Train the cell whose header lies in `run_path`, as the rank that the environment names.

    Rank 0 says in `scratch` how far it is. The launcher may ask there to stop training, which ends in a checkpoint.
    Continues from the cell's checkpoint where there is one.
    """
    run = RunDirectory(Path(run_path))
    header = run.header()
    config = header.config
    current.begin("opening the data")
    workload = build_workload(config.workload, config.workload_options, config.plugins)
    workload.open(header.data_source)
    current.begin("meeting the others")
    latency_s = config.lab.fabric_latency_s if config.lab else 0.0
    with closing(connect(device=config.device, timeout_s=config.timeout_s, latency_s=latency_s)) as fabric:
        sinks = Sinks([RunFiles(run), StepCounter(Path(scratch))] if fabric.rank == 0 else [])
        # Launchers of other ranks may hear a second later: they look once a second.
        ahead_s = 1.5 if "TORCHELASTIC_RUN_ID" in os.environ else 0.5
        request = StopRequest(Path(scratch))
        stopping = Stopping(request, fabric.words, fabric.rank, fabric.world_size, ahead_s)
        with fabric.naming_peers():
            Node(run, config, workload, fabric, sinks, stopping).live()


class _Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A segment inside which training stopped: the step of its evaluation, steps so far, the sum of their losses.

    A resumed run evaluates where the run would have that never stopped, and says the same mean loss.
    """

    end: Natural
    steps: Natural
    losses: float

    @classmethod
    def of(cls, end: int, steps: int, losses: float) -> "_Unfinished":
        finite = math.isfinite(losses)  # else the next loss ends the run anyway
        return cls(end=end, steps=steps if finite else 0, losses=losses if finite else 0.0)


class Node:
    """One rank of one run."""

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        workload: Workload,
        fabric: Fabric,
        sinks: Sinks,
        stopping: Stopping | None = None,
    ) -> None:
        self._run, self._config, self._workload, self._fabric = run, config, workload, fabric
        self._parts = Parts(run.checkpoint, fabric)
        self._lead = fabric.rank == 0
        self._clock = TrainClock(fabric, config.lab.dilation if config.lab else 1.0)
        self._totals = Totals(
            step=0, train_s=0, wall_s=0, bytes_sent=0, bytes_received=0, computing_s=(0.0,) * fabric.world_size
        )
        self._segment = 0
        self._sinks = sinks
        self._trace = TraceSample(run.trace, workload, fabric, config.batch_size)
        self._sharing = Sharing(possible=can_be_shared(workload, fabric))
        self._told = False
        self._stopping, self._stopped = stopping, False
        self._unfinished: _Unfinished | None = None

    def live(self) -> None:
        """Train to the end of the budget, evaluating and checkpointing on the way, or until it is to stop."""
        self._all_threads = min(torch.get_num_threads(), own_cores())
        torch.set_num_threads(self._config.threads)
        torch.manual_seed(derived_seed(self._config.seed, "node", self._fabric.rank))
        if self._lead and self._config.code:
            rehearse(self._workload, cuts_units=load_method(self._config.method, self._config.plugins).cuts_units)
        self._warm_up()
        self._memory = PeakMemory(self._fabric.device)
        self._method = self._build_method()
        if self._config.compile:
            self._compile()
        for traffic in self._fabric.traffic.values():
            traffic.sent = traffic.received = 0
        self._resume()
        torch.set_num_threads(self._config.threads)  # a served model has set it for threads that are yet to start
        ahead = self._workload.batches_ahead
        recorder = self._fabric.recorder
        self._ahead = BatchesAhead(self._made, self._totals.step, self._config.steps, ahead, recorder)
        self._wall_started = time.perf_counter() - self._totals.wall_s
        self._saved = time.perf_counter()
        finished = self._totals.step == 0 and self._evaluate(None)
        self._trace.start()
        if self._stopping is not None:
            self._stopping.start(self._totals.step)
        while not finished and self._totals.step < self._config.steps:
            loss = self._train_segment()
            if self._stopped:
                break
            finished = self._evaluate(loss)
            self._tell()
            self._save_trace(whole=True)
            self._save_if_due(finished)
        self._ahead.close()
        if self._stopping is not None:
            self._stopping.close()
        if self._stopped:
            self._save_stopped()
        else:
            self._save_trace(whole=False)
            self._finish()

    def _build_method(self) -> Method:
        config = self._config
        method = build_method(config.method, config.method_options, seed=config.seed, plugins=config.plugins)
        method.total_steps = config.steps
        replicated = method.batches == "replicated"
        self._shards = 1 if replicated else config.nodes
        self._batches = ShardedBatches(
            self._workload.train_size,
            config.batch_size,
            rank=0 if replicated else self._fabric.rank,
            world_size=self._shards,
            seed=config.seed,
        )
        workload = computed(
            self._workload,
            self._fabric.device,
            amp=config.amp,
            channels_last=config.channels_last,
            compiled=config.compile,
        )
        with torch.device("meta"):
            model = workload.build_model()
        method.setup(model, workload, self._fabric)
        return method

    def _warm_up(self) -> None:
        """One step on throw-away weights, so that the clock starts on warm kernels and connections."""
        current.begin("warming up")
        state = checkpoint.random_state(self._fabric.device)
        method = self._build_method()
        current.begin("warming up", timed=not self._config.compile)
        with compiling() if self._config.compile else nullcontext():
            method.step(self._on_device(self._made(0)))
        method.drain()  # what is still under way would count as training
        current.begin("starting")
        del method
        checkpoint.set_random_state(state, self._fabric.device)
        gc.collect()
        self._fabric.barrier("warming up")

    def _compile(self) -> None:
        """One step of the method that is to train, which compiles its model, and back to where it was."""
        current.begin("compiling")
        state = {"method": self._method.state_dict(), "random": checkpoint.random_state(self._fabric.device)}
        state = copy.deepcopy(state)
        self._method.step(self._on_device(self._made(0)))
        self._method.drain()
        self._method.load_state_dict(state["method"])
        checkpoint.set_random_state(state["random"], self._fabric.device)
        self._fabric.barrier("compiling")

    def _made(self, step: int) -> Batch:
        return self._workload.train_batch(self._batches.indices(step), self._batches.generator(step))

    def _on_device(self, batch: Batch) -> Batch:
        (inputs, targets), device = batch, self._fabric.device
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def _train_segment(self) -> float | None:
        """Train to the next evaluation, on the clock; returns the mean training loss over steps and nodes.

        None where training is to stop before that, after any local step.
        """
        first, totals, config = self._totals.step, self._totals, self._config
        round_steps = self._method.round_steps
        last = segment_end(config.eval_every, first, config.steps, totals.train_s, self._segment, round_steps)
        before = self._unfinished or _Unfinished(end=last, steps=0, losses=0.0)
        last, self._unfinished = before.end, None
        losses = Losses(self._fabric.device, (before.steps, before.losses))
        self._fabric.barrier("starting a segment")
        self._memory.start()
        self._clock.start()
        self._fabric.recorder.resume()
        for step in self._steps(first, last):
            if self._stopping is not None and self._stopping.reached(step):
                self._stopped = True
                break
            current.begin("computing training step", step, timed=True)
            self._method.local_step = step
            losses.add(self._method.step(self._on_device(self._ahead.take(step))))
            self._fabric.recorder.mark("step")
            self._sinks.step(step + 1)
            totals.step = step + 1
        if totals.step % round_steps and not self._stopped:
            self._method.close_round()
        self._method.drain()
        current.begin("ending the round of step", totals.step)
        self._ahead.settle()
        seconds, computing = self._clock.elapsed(), self._clock.computing()
        self._memory.stop()
        self._segment = totals.step - first
        totals.train_s += self._fabric.maximum(seconds)
        by_rank = self._fabric.numbers(computing)
        if len(totals.computing_s) == len(by_rank):
            totals.computing_s = tuple(a + b for a, b in zip(totals.computing_s, by_rank, strict=True))
        if self._stopped:
            self._unfinished = _Unfinished.of(last, *losses.so_far())
            return None
        slower = "lr" in self._config.method_options
        return losses.mean(
            self._fabric, first - before.steps, "; lower the learning rate (--set lr=...)" if slower else ""
        )

    def _steps(self, first: int, last: int) -> Iterator[int]:
        """The local steps from `first` to `last` (exclusive), or to where the nodes find their seconds used up.

        They look at the time together where an evaluation is due, but has to wait for the end of its round.
        """
        limit, seconds, before = self._config.max_seconds, self._totals.train_s, self._segment
        while first < last:
            due = last if limit is None else due_step(self._config.eval_every, first, last, seconds, before)
            yield from range(first, due)
            if limit is not None and due < last:
                seconds = self._totals.train_s + self._fabric.maximum(self._clock.elapsed())
                if seconds >= limit:
                    return
            first, before = due, due - first

    def _evaluate(self, train_loss: float | None) -> bool:
        """Assemble and evaluate, off the clock, and record it; returns whether the run is to stop here."""
        current.begin("evaluating after step", self._totals.step)
        figures = self._method.figures()
        started = time.perf_counter()
        with self._full_model() as model:
            found = {} if model is None else {**figures, **model.metrics()}
        assemble_s = 0.0 if model is None else model.assembled_s
        metrics: Metrics = {name: _number(value) for name, value in found.items()}
        self._count_bytes()
        totals, config = self._totals, self._config
        totals.wall_s = time.perf_counter() - self._wall_started
        self._last = Evaluation(
            step=totals.step,
            samples=totals.step * config.batch_size * self._shards,
            train_s=totals.train_s,
            wall_s=totals.wall_s,
            assemble_s=assemble_s,
            evaluate_s=time.perf_counter() - started - assemble_s,
            bytes_sent_per_node=round(totals.bytes_sent),
            bytes_received_per_node=round(totals.bytes_received),
            train_loss=None if train_loss is None else _number(train_loss),
            metrics=metrics,
        )
        self._sinks.record(self._last)
        value = metrics.get(self._workload.metric)
        reached = config.target is not None and value is not None and value >= config.target
        late = totals.train_s >= (config.max_seconds or math.inf)
        return self._fabric.maximum(float(reached or late)) > 0

    @contextmanager
    def _full_model(self) -> Iterator[FullModel | None]:
        """The model as it is evaluated. By all cores, the others wait: as many for any number, but in a lab."""
        torch.set_num_threads(self._all_threads if self._lead else self._config.threads)
        try:
            with full_model(self._method, self._workload, self._fabric, self._config.seed, self._sharing) as model:
                yield model
        finally:
            torch.set_num_threads(self._config.threads)

    def _tell(self) -> None:
        """Record the method's note, once."""
        if not self._told and self._method.note():
            self._sinks.record(Note(message=self._method.note()))
        self._told = True

    def _save_trace(self, *, whole: bool) -> None:
        why_not = self._trace.save(whole=whole)
        if why_not:
            self._sinks.record(Note(message=f"no trace, and no replays: {why_not}"))

    def _count_bytes(self) -> None:
        """Take the training traffic so far, of the busiest node, into the totals."""
        traffic = self._fabric.traffic["training"]
        self._totals.bytes_sent = self._fabric.maximum(traffic.sent)
        self._totals.bytes_received = self._fabric.maximum(traffic.received)

    def _save_if_due(self, finished: bool) -> None:
        if finished or self._totals.step >= self._config.steps:
            return
        due = time.perf_counter() - self._saved >= self._config.checkpoint_every_s
        if self._fabric.maximum(float(due)) > 0:
            self._save()

    def _save_stopped(self) -> None:
        """Write a checkpoint of where training stopped, unless there is one."""
        if self._totals.step not in (0, self._parts.last):
            self._count_bytes()
            self._totals.wall_s = time.perf_counter() - self._wall_started
            self._save()
        self._fabric.barrier("stopping")  # none ends before rank 0 has published it

    def _save(self) -> None:
        current.begin("writing the checkpoint of step", self._totals.step)
        traffic = self._fabric.traffic["training"]
        state = {
            "method": self._method.state_dict(),
            "random": checkpoint.random_state(self._fabric.device),
            "traffic": {"sent": traffic.sent, "received": traffic.received},
        }
        if self._unfinished is not None:
            state["segment"] = msgspec.structs.asdict(self._unfinished)
        self._parts.write(self._totals, state, self._is_shared)
        self._saved = time.perf_counter()

    def _is_shared(self, keys: tuple[str, ...]) -> bool:
        return keys[0] == "method" and self._method.is_shared(keys[1:])

    def _resume(self) -> None:
        current.begin("reading the checkpoint")
        found = self._parts.read()
        if found is None:
            return
        totals, state, damage = found
        with checkpoint.fitting(self._run.checkpoint):
            if not 0 < totals.step < self._config.steps:
                raise UserError(f"it is of step {totals.step}, the run ends at step {self._config.steps}")
            self._method.load_state_dict(state["method"])
            checkpoint.set_random_state(state["random"], self._fabric.device)
            # Checkpoints of before have the busiest node's alone.
            before = state.get("traffic", {"sent": totals.bytes_sent, "received": totals.bytes_received})
            traffic = self._fabric.traffic["training"]
            traffic.sent, traffic.received = int(before["sent"]), int(before["received"])
            if "segment" in state:
                self._unfinished = convert(state["segment"], _Unfinished, path_text)
                if not totals.step < self._unfinished.end <= self._config.steps:
                    raise UserError(f"its segment ends at step {self._unfinished.end}")
        self._totals = totals
        if damage and self._lead:
            self._sinks.record(self._resumption(totals.step, damage))

    def _resumption(self, step: int, damage: str) -> Resume:
        """The event of a run that goes on from `step` instead of a newer checkpoint, which is damaged."""
        header = self._run.header()
        return Resume(
            step=step,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            part=Part(host=header.host, versions=header.versions, git=header.git),
            damage=f"checkpoint {damage}; the run goes on from the checkpoint of step {step}",
        )

    def _finish(self) -> None:
        """Tell what came of the run."""
        current.begin("finishing after step", self._totals.step)
        peak = self._fabric.maximum(self._memory.peak or 0)
        hosts = self._fabric.words.tell_zero(host_name())
        with self._full_model() as model:
            digest = "" if model is None else sha256_of(model.tensors, model.block)
            if model is not None and self._config.save is not None:
                save_weights(Path(self._config.save), model.tensors, model.block, digest)
        last = self._last
        self._sinks.finish(
            Result(
                steps=last.step,
                samples=last.samples,
                train_s=last.train_s,
                wall_s=last.wall_s,
                train_loss=last.train_loss,
                final=last.metrics,
                bytes_sent_per_node=last.bytes_sent_per_node,
                bytes_received_per_node=last.bytes_received_per_node,
                peak_memory_bytes_per_node=int(peak) or None,
                weights_sha256=digest,
                node_seconds=node_seconds(last.train_s, self._totals.computing_s, hosts),
            )
        )


def _number(value: float) -> float | None:
    """`value`, None where it is not finite."""
    return value if math.isfinite(value) else None
