"""The baseline of P3: a parameter server on every node, which is also a worker.

It is the synchronous server of Li et al., "Scaling distributed machine learning with the parameter server", OSDI
2014. Each parameter is one message. A worker sends a gradient to its server as soon as it is ready. The server
updates the parameter by the mean gradient of all nodes and sends it back at once, without a notification and a pull
request. Messages of a connection are first in, first out. The next forward pass waits, module by module, for the
parameters that it needs. The P3 paper compares with MXNet's server, which splits parameters of more than a million
elements evenly over its servers: `split_params`.

BatchNorm: as in `ddp`, every node normalises by its own minibatch, and the assembled model has the running
statistics of rank 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from istbench.base.options.numbers import Count, CountOrNone
from istbench.base.options.options import option
from istbench.fabric import Fabric
from istbench.methods.base import Method, is_parameter, materialise
from istbench.methods.footprint import Footprint, trained
from istbench.methods.optimizer import OptimizerOptions
from istbench.methods.served.messages import Slice, cut, most_slices, served_rounds
from istbench.methods.served.model import ServedModel
from istbench.workloads.base import Batch, Workload

_MOST_SLICES = 20_000


class ParameterServer(Method):
    """Each node updates its share of the parameters by the mean gradient, and sends it to the others."""

    name = "parameter_server"
    joint_rounds = True
    own_updates = "updates slices of parameters on their servers"
    own_object = "moved"
    unequal = "gradients"
    scheduled = True
    interrupts = "waits for parameters module by module inside a forward pass"

    @dataclass(frozen=True, kw_only=True)
    class Options(OptimizerOptions):
        accumulation_steps: Count = option(1, "parts of a minibatch; their gradients are added up before an update")
        split_params: CountOrNone = option(
            0, "split tensors of more parameters evenly over the servers; 0 splits none"
        )

    def least_batch(self, batch_size: int) -> int:
        part = -(-batch_size // self.options.accumulation_steps)  # like Tensor.chunk: the last part has the rest
        return batch_size - part * ((batch_size - 1) // part)

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._workload, self._fabric = workload, fabric
        own, options = materialise(model, workload, self.seed, fabric.device), self.options
        self._served = ServedModel(own, fabric, options.build, split_params=options.split_params, **self._slicing())

    def _slicing(self) -> dict[str, Any]:
        """The slices, their order and how many of them a connection holds, for the model and its footprint."""
        return {"slice_params": 0, "priority": False, "window": 1}

    def step(self, batch: Batch) -> Tensor:
        parts = list(_parts(batch, self.options.accumulation_steps))
        total = torch.zeros((), device=self._fabric.device)
        for number, (part, share) in enumerate(parts, start=1):
            loss = self._served.forward(partial(self._workload.loss, self._served.model, part))
            if len(parts) > 1:
                loss = loss * share
            self._served.backward(loss, self.learning_rate, push=number == len(parts))
            total += loss.detach()
        self._fabric.recorder.mark("round")
        return total

    def note(self) -> str:
        return self._served.describe()

    def drain(self) -> None:
        self._served.drain()

    def assemble(self) -> nn.Module | None:
        self._served.drain()
        return self._served.model if self._fabric.rank == 0 else None

    def state_dict(self) -> dict[str, Any]:
        return self._served.state_dict()

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        # Each server keeps its own optimizer state, and each node its own buffers.
        return keys[0] == "model" and is_parameter(self._served.model, keys[1])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._served.load_state_dict(state)

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        return self._served.resharded(states, rank)

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """The whole model; for the slices that a node serves, all gradients and the optimizer state."""
        options, slicing = self.options, self._slicing()
        sizes = [parameter.numel() for parameter in trained(model)]
        itemsize = max((parameter.element_size() for parameter in trained(model)), default=4)
        slices = _slices(sizes, slicing["slice_params"], world_size, options.split_params)
        own = _busiest(slices, world_size) if slices is not None else -(-sum(sizes) // world_size)
        largest = min(slicing["slice_params"] or max(sizes, default=0), max(sizes, default=0))
        return Footprint(
            model=model,
            rounds=None if slices is None else served_rounds(slices, itemsize, slicing["priority"]),
            optimizer_state=len(options.slots) * own * itemsize,
            stepped=(torch.empty(largest, device="meta"),),
            build=options.build,
            samples=-(-batch_size // options.accumulation_steps),
            buffers=(world_size - 1) * own * itemsize,
            window=slicing["window"] if slicing["priority"] else None,
        )


def _slices(
    sizes: Sequence[int], slice_params: int, world_size: int, split_params: int
) -> list[list[Slice]] | None:
    """The slices of each parameter; None if there are too many to list."""
    if most_slices(sizes, slice_params, world_size, split_params=split_params) > _MOST_SLICES:
        return None
    return cut(sizes, slice_params, world_size, split_params=split_params)


def _busiest(slices: Sequence[Sequence[Slice]], world_size: int) -> int:
    served = [0] * world_size
    for slice in (slice for one in slices for slice in one):
        served[slice.server] += slice.stop - slice.start
    return max(served)


def _parts(batch: Batch, count: int) -> Iterator[tuple[Batch, float]]:
    """`batch` in `count` parts, each with its share of the samples."""
    inputs, targets = batch
    for some, their in zip(inputs.chunk(count), targets.chunk(count), strict=True):
        yield (some, their), len(some) / len(inputs)
