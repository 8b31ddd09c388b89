"""The speeds of unequal nodes (`--shares speed`), measured before the clock starts: steps on throw-away weights."""

import gc
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from istbench.base.activity import current
from istbench.base.options.run import RunConfig
from istbench.base.options.shares import Shares
from istbench.fabric import Fabric
from istbench.fabric.recorder import Recorder
from istbench.node.checkpoint import random_state_kept
from istbench.node.destinations import Destinations
from istbench.node.setup import Setup, on_device, set_up
from istbench.node.train_clock import TrainClock
from istbench.results.events import Speeds, speeds_of
from istbench.results.store import RunDirectory
from istbench.workloads.base import Workload

_LONG_S = 1.0  # ten periods of the kernel's limit of a processor
_FEWEST, _MOST = 3, 200
_SHORTEST_S = 1e-9
_NAME = "measuring the nodes' speeds"


def with_measured_shares(
    run: RunDirectory, config: RunConfig, workload: Workload, fabric: Fabric, destinations: Destinations
) -> RunConfig:
    """`config` with numbers in place of `--shares speed`: those of an earlier part of `run`, or else measured now.

    Every rank must call it. Rank 0 records measured speeds.
    """
    if config.shares is None or config.shares.speeds or config.nodes == 1:
        return config
    known = speeds_of(run.events()) if fabric.rank == 0 else ()
    speeds = json.loads(fabric.texts.broadcast(json.dumps(known)))
    if not speeds:
        equal = msgspec.structs.replace(config, shares=None, compile=False)
        with _leaving_no_trace(fabric):
            seconds = step_seconds(equal, workload, fabric)
        speeds = relative_speeds(seconds)
        destinations.record(Speeds(speeds=speeds, step_s=tuple(seconds)))
    return msgspec.structs.replace(config, shares=Shares(speeds))


def relative_speeds(seconds: list[float]) -> tuple[float, ...]:
    """The speed of each node that computes a step in `seconds`, relative to the fastest, to three digits."""
    counted = [max(own, _SHORTEST_S) for own in seconds]
    return tuple(max(1e-3, round(min(counted) / own, 3)) for own in counted)


def step_seconds(config: RunConfig, workload: Workload, fabric: Fabric) -> list[float]:
    """Seconds that each node computes in a step on equal shares, by rank: all at once, for a second."""
    current.begin(_NAME, timed=True)
    setup, clock = set_up(config, workload, fabric), TrainClock(fabric)
    _train(setup, clock, fabric, 1)
    longest, _ = _train(setup, clock, fabric, 1)
    steps = min(_MOST, max(_FEWEST, math.ceil(_LONG_S / max(fabric.maximum(longest), _SHORTEST_S))))
    _, computing = _train(setup, clock, fabric, steps)
    return fabric.numbers(computing / steps)


def _train(setup: Setup, clock: TrainClock, fabric: Fabric, steps: int) -> tuple[float, float]:
    """Seconds of `steps` steps of this node, and those in which it computed."""
    fabric.barrier(_NAME)
    clock.start()
    for step in range(steps):
        setup.method.step(on_device(setup.batch(step), fabric.device))
    setup.method.drain()
    return clock.elapsed(), clock.computing()


@contextmanager
def _leaving_no_trace(fabric: Fabric) -> Iterator[None]:
    """Inside, steps change neither the trace nor the random numbers of training."""
    recorder, fabric.recorder = fabric.recorder, Recorder(fabric.device)
    with random_state_kept():
        yield
    fabric.recorder = recorder
    gc.collect()  # the model goes before the next one comes
    fabric.barrier(_NAME)
