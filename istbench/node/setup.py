"""Before the clock starts: the method of a run, the training batches of this rank, and kernels that are warm."""

import copy
import gc
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import msgspec
import torch

from istbench.base.activity import current
from istbench.base.errors import UserError
from istbench.base.options.run import RunConfig
from istbench.fabric import Fabric
from istbench.methods.base import Method, OwnKernels
from istbench.methods.weights import Weights
from istbench.node.checkpoint import random_state_kept
from istbench.node.checkpoint_steps import WorkerGroup
from istbench.node.compute_options import Computed, compiling
from istbench.node.registry import build_method
from istbench.node.shares import take_shares
from istbench.node.step_work import CountedStep, OperationCounter
from istbench.node.worker_group import batches_of
from istbench.workloads.base import Batch, Workload
from istbench.workloads.batches import ShardedBatches

_ALIKE = 1e-5  # of the sum of all values: hosts round differently


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A method that is ready to train, and its training batches."""

    method: Method
    workload: Workload
    batches: ShardedBatches

    def batch(self, step: int) -> Batch:
        """The batch of this rank in local step `step`, in host memory."""
        return self.workload.train_batch(self.batches.indices(step), self.batches.generator(step))


def set_up(config: RunConfig, workload: Workload, fabric: Fabric) -> Setup:
    """Build the method and give it the model, which it initialises from the seed."""
    method = build_method(config.method, config.method_options, seed=config.seed, plugins=config.plugins)
    method.total_steps = config.steps
    take_shares(config.shares, method, config.batch_size, config.nodes)
    batches = batches_of(WorkerGroup(nodes=fabric.world_size), fabric.rank, config, method, workload)
    weight = Weights.of(method.samples, fabric.rank).node if method.unequal == "gradients" else 1.0
    computing = workload
    if config.amp or config.channels_last or config.compile or weight != 1:
        told = Computed(
            workload,
            fabric.device,
            amp=config.amp,
            channels_last=config.channels_last,
            compiled=config.compile,
            weight=weight,
        )
        computing = cast(Workload, told)
    with torch.device("meta"):
        model = computing.build_model()
    method.setup(model, computing, fabric)
    _check_same_start(workload, fabric)
    return Setup(method=method, workload=workload, batches=batches)


def _check_same_start(workload: Workload, fabric: Fabric) -> None:
    """Refuse a user's model whose initial values differ between nodes: they would train different models.

    Raises:
        UserError: on rank 0, naming the first rank that differs.
    """
    own = workload.start_sums()
    if not own:
        return
    sums = [json.loads(text) for text in fabric.texts.gather(json.dumps(own))]
    near = [max(abs(a - b) for a, b in zip(found, own, strict=True)) <= _ALIKE * own[0] for found in sums]
    other = near.index(False) if False in near else None
    if other is not None:
        raise UserError(
            f"{workload.in_errors}: model() gives other initial values on node {other} than on node 0; it should "
            "draw its random numbers from torch, NumPy or Python's random"
        )


def warm_up(config: RunConfig, workload: Workload, fabric: Fabric) -> CountedStep:
    """Train one step on throw-away weights, so that the clock starts with warm kernels and connections.

    Returns the work of that step, which is counted before torch compiles it. It is a step of a round behind the
    method's own warm-up, as in the recorded rounds. A step of the warm-up, which may train another model, comes
    before it.
    """
    current.begin("warming up")
    counter = OperationCounter()
    plain = msgspec.structs.replace(config, compile=False)
    with random_state_kept():
        if config.method_options.get("warmup_rounds"):
            _throw_away_step(plain, workload, fabric, nullcontext())
            gc.collect()  # its model goes before the next one comes
        gathered = _throw_away_step(_past_warmup(plain), workload, fabric, counter)
        if config.compile:
            _throw_away_step(_past_warmup(config), workload, fabric, compiling())
    gc.collect()
    fabric.barrier("warming up")
    return counter.counted(gathered)


def _past_warmup(config: RunConfig) -> RunConfig:
    options = {name: value for name, value in config.method_options.items() if name != "warmup_rounds"}
    return msgspec.structs.replace(config, method_options=options)


def _throw_away_step(
    config: RunConfig, workload: Workload, fabric: Fabric, inside: AbstractContextManager[object]
) -> float:
    """Train one step `inside`; returns the bytes that the method's own kernels gather in it."""
    setup = set_up(config, workload, fabric)
    current.begin("warming up", timed=not config.compile)
    with inside:
        setup.method.step(on_device(setup.batch(0), fabric.device))
    setup.method.drain()  # transfers that are still under way would count as training
    current.begin("starting")
    return setup.method.gathered_bytes() if isinstance(setup.method, OwnKernels) else 0.0


def compile_model(setup: Setup, fabric: Fabric) -> None:
    """Train one step, which compiles the model of this method, and restore the state before it."""
    current.begin("compiling")
    method = setup.method
    state = copy.deepcopy(method.state_dict())
    with setup.workload.state_kept(), random_state_kept():
        method.step(on_device(setup.batch(0), fabric.device))
        method.drain()
    method.load_state_dict(state)
    fabric.barrier("compiling")


def on_device(batch: Batch, device: torch.device) -> Batch:
    """`batch` on `device`; copies to a GPU run beside its kernels."""
    inputs, targets = batch
    return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
