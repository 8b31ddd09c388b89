"""One worker process of a run: set up, train, evaluate, record, decide, save. It owns the clock."""

import dataclasses
import math
import os
import time
from contextlib import closing, nullcontext
from pathlib import Path

import torch

from istbench.base.activity import current
from istbench.base.error_lines import during
from istbench.base.errors import UserError, printable
from istbench.base.machine import own_cores
from istbench.base.options.run import RunConfig
from istbench.base.seeds import derived_seed
from istbench.fabric import Fabric, connect
from istbench.methods.base import Notes
from istbench.node.checkpoint import seed_random_state
from istbench.node.destinations import Destinations, RequestedSink, RunFiles
from istbench.node.full_model import Evaluated, Evaluator
from istbench.node.measured_shares import with_measured_shares
from istbench.node.peak_memory import PeakMemory
from istbench.node.registry import build_workload, code_of_cell, load_method
from istbench.node.rehearsal import rehearse
from istbench.node.run_log import RunLog
from istbench.node.setup import compile_model, set_up, warm_up
from istbench.node.stopping import GrowRequest, Stopping, StopRequest
from istbench.node.trace_sample import TraceSample
from istbench.node.trainer import Trainer
from istbench.node.training_state import TrainingState
from istbench.node.worker_group import Pace, batches_of
from istbench.results.header import Header
from istbench.results.run_parts import after_loss, restarts
from istbench.results.store import RunDirectory
from istbench.workloads.base import Workload
from istbench.workloads.contract import metric_of
from istbench.workloads.held_out import hold_out


def train_cell(run_path: str, scratch: str, header: Header) -> None:
    """Train the cell of `header` in the directory `run_path`, as the rank that the environment names.

    Continues from the cell's checkpoint where there is one. The launcher may request a stop in the directory
    `scratch`; training then ends with a checkpoint.

    header: as the launcher resolved it. A worker takes no name of code, data or place from the directory.
    """
    run = RunDirectory(Path(run_path))
    config = header.config
    current.begin("opening the data")
    workload = build_workload(config.workload, config.workload_options, config.plugins)
    _check_code(config)
    workload = hold_out(workload, config.held_out or None, config.seed)
    workload.open(header.data_source)
    with closing(connect(device=config.device, timeout_s=config.timeout_s)) as fabric:
        if fabric.several_hosts or (config.lab and config.lab.latency_s):
            fabric.look_at_distance(config.lab.dilation if config.lab else 1.0)
        sinks = (RequestedSink(text, run) for text in config.sinks)
        destinations = Destinations([RunFiles(run), *sinks] if fabric.rank == 0 else [])
        current.start()
        # Launchers of other ranks look once a second, so they may hear a second later.
        ahead_s = 1.5 if "TORCHELASTIC_RUN_ID" in os.environ else 0.5
        request = StopRequest(Path(scratch))
        stopping = Stopping(request, fabric.texts, fabric.rank, fabric.world_size, ahead_s)
        if config.lab and config.lab.recorded_steps:
            fabric.recorder.least_steps = config.lab.recorded_steps
        guarded = (
            destinations.closed_at_end(lambda: "interrupted" if request.requested() else "failed")
            if fabric.rank == 0 and config.sinks
            else nullcontext()
        )
        own = during("", workload.place("model"), of_libraries=True)
        with fabric.naming_peers(), guarded, destinations, own:
            grow = GrowRequest(Path(scratch)) if config.elastic is not None and fabric.rank == 0 else None
            training = RankTraining(
                run, config, workload, fabric, destinations, stopping, threads=header.threads, grow=grow
            )
            training.train()


def _check_code(config: RunConfig) -> None:
    """Refuse code that changed since the launcher named the cell: its figures would stand under the old name.

    Call it after the import, so that a later change also shows.

    Raises:
        UserError: naming the files.
    """
    if not config.code:
        return
    found = code_of_cell(config.workload, config.method, config.plugins, options=config.method_options)
    if found and found != config.code:
        files = " or ".join(map(printable, config.plugins))
        raise UserError(
            f"{files or f'the package of {config.workload} or {config.method}'} changed since this cell was named; "
            "undo the change, or run the command again for a cell of its own"
        )


def compute_on(threads: int) -> None:
    """Compute on `threads`, with numbers below 1.2e-38 as zeros, also in threads that this one starts.

    Adam's means decay to such numbers for weights that get no more gradients. A processor takes some 20 times as
    long for them.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


class RankTraining:
    """Training of one rank on `threads`, from the checkpoint in `run` or the first step to the end of the run.

    That is when the budget ends, the target is reached or the launcher requests a stop. It is also when a larger
    group could train, on the rank that knows of `grow`.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        workload: Workload,
        fabric: Fabric,
        destinations: Destinations,
        stopping: Stopping | None = None,
        *,
        threads: int = 1,
        grow: GrowRequest | None = None,
    ) -> None:
        all_threads = min(torch.get_num_threads(), own_cores())
        compute_on(threads)
        seed_random_state(derived_seed(config.seed, "node", fabric.rank))
        with workload.state_kept():
            if fabric.rank == 0 and config.code:
                current.begin("computing a first loss", timed=True)
                rehearse(workload, load_method(config.method, config.plugins), fabric.world_size)
            counted = warm_up(config, workload, fabric)
            config = with_measured_shares(run, config, workload, fabric, destinations)
        self._memory = PeakMemory(fabric.device)
        setup = set_up(config, workload, fabric)
        if config.compile:
            compile_model(setup, fabric)
        for traffic in fabric.traffic.values():
            traffic.sent = traffic.received = 0
        self._config, self._fabric, self._grow = config, fabric, grow
        self._evaluator = Evaluator(config, setup.method, workload, fabric, all_threads)
        events = run.events() if fabric.rank == 0 else []
        self._state = TrainingState(
            run.checkpoint, config, setup, fabric, losses=len(restarts(events)), anew=after_loss(events)
        )
        began = time.time()
        restored = self._state.restore()
        loaded = time.time()
        # A served model sets one thread for threads that start later.
        torch.set_num_threads(threads)
        self._progress = restored.progress
        group = self._progress.totals.groups[-1]
        batches = batches_of(group, fabric.rank, config, setup.method, setup.workload)
        self._setup = setup = dataclasses.replace(setup, batches=batches)
        pace = Pace.of(group, config, setup.method)
        self._last_step = pace.local(config.steps)
        self._log = RunLog(destinations, self._progress, fabric, pace)
        if config.elastic is not None and restored.before != fabric.world_size:
            self._log.resized(restored.before)
        if fabric.rank == 0:
            self._log.ready(run, began, loaded)
        if restored.damage and fabric.rank == 0:
            self._log.resumption(run, restored.damage)
        # A pause between steps would let links of a lab catch up while its clock stands still.
        self._trace = (
            TraceSample(run.trace, counted, fabric, config.batch_size, in_lab=config.lab is not None)
            if config.elastic is None
            else None
        )
        self._trainer = Trainer(
            config, setup, fabric, self._progress.totals, pace, segment=restored.segment, memory=self._memory,
            destinations=destinations, stopping=stopping, sample=self._trace,
        )  # fmt: skip
        # A resumed pass over an iterable is read again up to its batch: now, and not on the train clock.
        if setup.workload.in_turn and self._progress.totals.step < self._last_step:
            setup.batch(self._progress.totals.step)

    def train(self) -> None:
        """Train to the end of the run, or to a stop, which leaves a checkpoint; also before the group grows."""
        with closing(self._trainer):
            grows = self._train_segments()
        self._trainer.stalls.finish()
        self._state.finish()
        if self._trainer.stopped:
            self._state.save_stopped(self._progress, self._trainer.open_segment)
        elif not grows:
            self._save_trace(whole=False)
            current.begin("finishing after step", self._progress.totals.step)
            self._log.result(self._evaluator.save(), self._memory.peak, self._config.nodes)

    def _train_segments(self) -> bool:
        """Train, evaluate, record, decide and save, in turn. Returns whether it ends for the group to grow."""
        totals = self._progress.totals
        with self._setup.workload.state_kept() if totals.step == 0 else nullcontext():
            over = totals.step == 0 and self._evaluate(None)
        if self._trace is None:
            self._log.no_trace("its number of nodes may change (--elastic)")
        else:
            self._trace.start()
        self._trainer.start()
        while not over and totals.step < self._last_step:
            loss = self._trainer.train_segment()
            if self._trainer.stopped:
                return False
            over = self._evaluate(loss)
            method = self._setup.method
            if isinstance(method, Notes):
                self._log.method_note(method.note())
            self._save_trace(whole=True)
            if not over and self._state.save_if_due(totals, self._grow is not None and self._grow.due()):
                return True
            self._log.urgent_note(self._state.unsaved())
        return False

    def _save_trace(self, *, whole: bool) -> None:
        if self._trace is not None:
            self._log.no_trace(self._trace.save(whole=whole, stalled_s=self._trainer.stalls.in_trace_s))

    def _evaluate(self, train_loss: float | None) -> bool:
        """Evaluate; returns whether the run is over. The last evaluation counts the last exchange."""
        step = self._progress.totals.step
        found = self._evaluator.evaluate(step)
        over = self._is_over(found)
        if over and step:
            self._trainer.finish()
        self._log.evaluation(found, train_loss)
        return over

    def _is_over(self, found: Evaluated) -> bool:
        """Whether the run has reached its target, or used up its steps or seconds. Every rank must call it."""
        config, metric, totals = self._config, metric_of(self._setup.workload), self._progress.totals
        reached = config.target is not None and metric.reached(found.metrics.get(metric.name), config.target)
        late = totals.step >= self._last_step or totals.train_s >= (config.max_seconds or math.inf)
        return self._fabric.maximum(float(reached or late)) > 0
