"""Short trainings for checks and tests: by a method on the fabric of a node, and by a plain loop."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from istbench.base.scratch import scratch_folder
from istbench.fabric import Fabric
from istbench.methods.base import Method, materialise
from istbench.methods.optimizer import ClippedOptions, OptimizerOptions, set_rate
from istbench.node import checkpoint
from istbench.node.registry import build_method, build_workload
from istbench.workloads.base import Workload
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.contract import blank_model


def open_workload(
    name: str, options: Mapping[str, Any], plugins: tuple[str, ...] = (), *, cache: Path | None = None
) -> Workload:
    """Workload `name` with its data open, prepared in `cache`; without one, anew."""
    workload = build_workload(name, options, plugins)
    with scratch_folder() if cache is None else nullcontext(cache) as folder:
        workload.open(workload.prepare(None, folder, lambda *_: None))
    return workload


def set_up(
    fabric: Fabric,
    workload: Workload,
    method: str,
    options: Mapping[str, Any],
    *,
    seed: int = 0,
    plugins: tuple[str, ...] = (),
    steps: int = 0,
) -> Method:
    """`method` with its defaults for `workload` and `options`, ready to step.

    steps: its budget, for a schedule of the learning rate.
    """
    built = build_method(method, options, workload=workload, seed=seed, plugins=plugins)
    built.total_steps = steps
    built.setup(blank_model(workload), workload, fabric)
    return built


def initial_model(workload: Workload, seed: int = 0) -> nn.Module:
    """The full model of `workload`, as a training with `seed` starts."""
    return materialise(blank_model(workload), workload, seed, torch.device("cpu"))


def batches_of(fabric: Fabric, workload: Workload, method: Method, *, seed: int = 0) -> ShardedBatches:
    """The minibatches of this node, as in a run."""
    shards = method.minibatches(fabric.world_size)
    return ShardedBatches(
        workload.train_size,
        workload.batch_size,
        rank=fabric.rank % shards,
        world_size=shards,
        seed=seed,
        in_turn=workload.in_turn,
    )


def train(
    fabric: Fabric, workload: Workload, method: Method, first: int, last: int, *, seed: int = 0
) -> list[float]:
    """Local steps `first` to `last` (exclusive); returns the losses."""
    batches = batches_of(fabric, workload, method, seed=seed)
    losses = []
    for step in range(first, last):
        method.local_step = method.schedule_step = step
        losses.append(float(method.step(workload.train_batch(batches.indices(step), batches.generator(step)))))
    return losses


def assembled(fabric: Fabric, method: Method) -> nn.Module | None:
    """The method's full model on rank 0, its traffic counted as assembling."""
    with fabric.accounting("assemble"):
        return method.assemble()


def through_disk(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """`state` after writing and reading a checkpoint."""
    with scratch_folder() as folder:
        checkpoint.write_rank(folder, 0, rank, state)
        return checkpoint.read_rank(folder, 0, rank)


def plain_training(
    workload: Workload, options: OptimizerOptions, steps: int, *, nodes: int = 1, seed: int = 0
) -> nn.Module:
    """Train in one process without a method: `steps` steps on the joined minibatches of `nodes` nodes."""
    model = initial_model(workload, seed)
    optimizer = options.build(model.parameters(), as_vectors=options.rule.as_vectors(model))
    shards = [
        ShardedBatches(workload.train_size, workload.batch_size, rank=rank, world_size=nodes, seed=seed)
        for rank in range(nodes)
    ]
    for step in range(steps):
        indices = torch.cat([shard.indices(step) for shard in shards])
        optimizer.zero_grad()
        workload.loss(model, workload.train_batch(indices, shards[0].generator(step))).backward()
        if isinstance(options, ClippedOptions):
            options.clip_gradients(model.parameters())
        if isinstance(options, OptimizerOptions):
            set_rate(optimizer, options.rate_at(step, steps))
        optimizer.step()
    return model


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """The largest absolute difference of any parameter; NaN if one is no number."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return float(torch.stack([(a - b).abs().max() for a, b in pairs]).max())
