"""Base of methods that compute only some outputs of a wide softmax, different ones for every sample.

The nodes share the model and exchange the hidden layer as in `model_parallel`. For every sample, a node computes
only its active outputs: the true ones among its own, and others that each method chooses. The softmax is over the
active outputs of all nodes. Random outputs in it represent all inactive ones. Kernels in istbench/methods/slide
compute and update only the active outputs; torch computes the hidden layer.
"""

import functools
import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from istbench.base.decode import convert, path_text
from istbench.base.errors import UserError
from istbench.base.options.numbers import Amount, CountOrNone, Duration, Natural
from istbench.base.options.options import option
from istbench.base.seeds import derived_seed
from istbench.fabric import Fabric
from istbench.methods.base import counted, fitting
from istbench.methods.cut_model import CutMethod, largest_part, wide_softmax
from istbench.methods.footprint import Footprint, tensor_bytes, trained
from istbench.methods.model_state import load_model_state, model_state
from istbench.methods.optimizer import OptimizerOptions, load_optimizer_state, optimizer_state, set_rate
from istbench.methods.slide.active import owned
from istbench.methods.slide.kernels import RowOptimizer, Rule
from istbench.methods.slide.shard import OutputShard
from istbench.methods.slide.softmax import Normaliser, combined
from istbench.methods.slide.threads import Threads
from istbench.workloads.base import Batch, Workload

_ONE_IN, _LEAST = 200, 2_048  # one in this many outputs is active by default
_PAIR_BYTES = (
    24  # of an active output in its sample: both orders, its weight in the softmax, the output, its gradient
)


_ROW_RULES = {"adam": Rule.ADAM, "sgd": Rule.SGD}  # those with kernels


@dataclass(frozen=True, kw_only=True)
class ActiveOptions(OptimizerOptions):
    target_active: CountOrNone = option(
        0,
        "active outputs of a sample beside its true ones, over all nodes; 0 takes one in "
        f"{_ONE_IN} outputs, and at least {_LEAST:,} or a quarter",
    )
    lazy: bool = option(
        True, "adam updates only the outputs of a minibatch, as torch's SparseAdam does; sgd always does"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer not in _ROW_RULES and not self.rule.whole_matrices:  # `Method` refuses those
            raise UserError(
                f"optimizer={self.optimizer} updates every weight in every step, but this method touches only "
                f"active outputs; use {' or '.join(_ROW_RULES)}"
            )
        for name in ("momentum", "weight_decay"):
            if getattr(self, name):
                raise UserError(
                    f"{name} updates every weight in every step, but this method touches only active outputs; "
                    "leave it out"
                )

    @property
    def row_rule(self) -> Rule:
        rule = _ROW_RULES[self.optimizer]
        return Rule.LAZY_ADAM if rule == Rule.ADAM and self.lazy else rule

    def active(self, outputs: int) -> int:
        """The number of active outputs, of `outputs` in all."""
        return self.target_active or max(1, outputs // _ONE_IN, min(_LEAST, outputs // 4))


class ActiveOutputs(CutMethod):
    """Trains only the active outputs of a split model."""

    exact_on_one_node = False

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._take(model, workload, fabric, sparse_gradients=self.options.row_rule == Rule.SGD)
        self._active = Active()
        self._gathered = 0.0
        self._threads = _threads(torch.get_num_threads()).telling(fabric.recorder.computed_beside)
        weights = self._softmax.output_weights(self._part)
        self._rows = self._outputs[fabric.rank]
        outputs = {id(own) for own in weights}
        hidden = [own for own in self._part.parameters() if id(own) not in outputs]
        self._optimizer = self.options.build(hidden)
        weight, bias = (own.detach().numpy() for own in weights)
        self._shard = self._build_shard(weight, bias, workload)

    @abstractmethod
    def _build_shard(self, weight: np.ndarray, bias: np.ndarray, workload: Workload) -> OutputShard:
        """This node's outputs, with the way to find active ones."""

    def _shard_of(self, weight: np.ndarray, bias: np.ndarray, **fields: Any) -> OutputShard:
        return OutputShard(
            weight,
            bias,
            RowOptimizer(self.options.row_rule, weight, self.options.betas),
            self._threads,
            seed=derived_seed(self.seed, "active", self._fabric.rank),
            **fields,
        )

    def _own_share(self, count: int) -> int:
        """This node's share of `count` outputs, at least one."""
        outputs = self._softmax.outputs.size
        return max(1, count * self._rows.stop // outputs - count * self._rows.start // outputs)

    def step(self, batch: Batch) -> Tensor:
        inputs, targets = batch
        self._optimizer.zero_grad()
        with self._timed("hidden"):
            own = self._softmax.hidden(self._part, inputs)
        with self._timed("exchange"):
            hidden = self._exchange.gather(own.detach()).contiguous()
        loss, gradient = self._step_outputs(hidden.numpy(), targets)
        with self._timed("exchange"):
            gradient_of_own = self._exchange.scatter(torch.from_numpy(gradient))
        with self._timed("hidden"):
            own.backward(gradient_of_own)
            set_rate(self._optimizer, self.learning_rate)
            self._optimizer.step()
        with self._timed("rebuild"):
            self._stepped()
        self._fabric.recorder.mark("round")
        return torch.tensor(loss)

    def _step_outputs(self, hidden: np.ndarray, targets: Any) -> tuple[float, np.ndarray]:
        """Update the active outputs; returns the loss, and their part of the gradient of `hidden` [b, units]."""
        truth = self._softmax.truth(targets)
        ends = truth.offsets[1:].numpy()
        with self._timed("active"):
            labels = owned(ends, truth.outputs.numpy(), self._rows.start, self._rows.stop)
            labelled = np.diff(ends, prepend=0) > 0
            sets = self._shard.active(hidden, labels, self.local_step)
        with self._timed("outputs"):
            mine = self._shard.forward(hidden, labels, sets)
        with self._timed("exchange"):
            parts = self._exchange.each(torch.from_numpy(mine.values), "normalising the softmax")
            whole = combined([Normaliser(part.numpy()) for part in parts])
        with self._timed("outputs"):
            gradient = self._shard.backward(whole, labelled, self.learning_rate)
        self._active.steps += 1
        self._active.outputs += len(sets.rows) / len(sets)
        rows, width = self._shard.weight.shape
        self._gathered = _kernel_bytes(len(sets.rows), rows, width, len(self.options.slots))
        return whole.loss(labelled), gradient

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Count the seconds inside for this part of the step."""
        started = time.perf_counter()
        yield
        seconds = self._active.seconds
        seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - started

    def gathered_bytes(self) -> float:
        return self._gathered

    def _stepped(self) -> None:
        """Called after a step has updated all weights."""
        return

    def figures(self) -> dict[str, float]:
        """`active_outputs`: mean over samples, of all nodes. `time_...`: shares of this node's time."""
        if not self._active.steps:
            return {}
        active, self._active = self._active, Active()
        total = sum(active.seconds.values())
        shares = {f"time_{part}": seconds / total for part, seconds in active.seconds.items()}
        return {"active_outputs": self._fabric.total(active.outputs / active.steps), **shares}

    def state_dict(self) -> dict[str, Any]:
        rows = self._shard.optimizer
        return {
            "part": model_state(self._part),
            "hidden": optimizer_state(self._optimizer),
            "outputs": {
                "moments": torch.from_numpy(rows.moments),
                "bias_moments": torch.from_numpy(rows.bias_moments),
                "steps": rows.steps,
            },
            "active": msgspec.structs.asdict(self._active),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_model_state(self._part, state["part"])
        load_optimizer_state(self._optimizer, state["hidden"])
        rows = self._shard.optimizer
        for name in ("moments", "bias_moments"):
            own = torch.from_numpy(getattr(rows, name))
            own.copy_(fitting(state["outputs"][name], own, f"{name} of outputs"))
        rows.steps = counted(state["outputs"], "steps")
        self._active = convert(state["active"], Active, path_text)

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        outputs = wide_softmax(cls.name, model, workload, world_size).outputs.size
        if options.target_active > outputs:
            raise UserError(
                f"target_active={options.target_active:,} is more than the {outputs:,} outputs of workload "
                f"{workload.name!r}; lower it"
            )

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """A node's part with its optimizer state; gradients of the hidden layer and of active outputs."""
        softmax = wide_softmax(self.name, model, workload, world_size)
        part, width = largest_part(softmax, world_size), softmax.units.size
        active = -(-self.options.active(softmax.outputs.size) // world_size)
        with torch.device("meta"):
            used = softmax.part(-(-width // world_size), range(active))
        outputs = {id(weight) for weight in softmax.output_weights(used)}
        rows = len(softmax.output_weights(part)[1])
        numbers = 4 * 3 * batch_size  # three of each sample
        whole = self._footprint_of(part, width, batch_size, world_size, normaliser=numbers)
        return replace(
            whole,
            model=used,
            stepped=tuple(parameter for parameter in trained(used) if id(parameter) not in outputs),
            gathered=_kernel_bytes(active * batch_size, rows, width, len(self.options.slots)),
            parameters_beside=tensor_bytes(trained(part)) - tensor_bytes(trained(used)),
            buffers=whole.buffers + _PAIR_BYTES * active * batch_size + self.index_bytes(rows, width),
        )

    def index_bytes(self, rows: int, width: int) -> int:
        """Bytes of the index that finds active outputs among `rows` rows of `width` entries."""
        return 0


def _kernel_bytes(pairs: int, rows: int, width: int, slots: int) -> float:
    """Bytes that the kernels of a step read and write for `pairs` of a sample and one of `rows` active rows.

    A row that is active at all is read, then read and written with `slots` states of the optimizer. Random pairs
    leave out some rows. The vectors of a batch stay in the cache, where three uses by a pair take about as
    long as reading one from memory.
    """
    active = -rows * math.expm1(-pairs / rows)
    return 4.0 * width * (pairs + (1 + 2 * (1 + slots)) * active)


@functools.cache
def _threads(count: int) -> Threads:
    """The pool of `count` threads that all methods of this process share."""
    return Threads(count)


class Active(msgspec.Struct, kw_only=True):
    """The active outputs of this node since the last evaluation.

    Attributes:
        steps: local steps. outputs: the sum over these steps of the mean number of active outputs of a sample.
        seconds: by part of a step.
    """

    steps: Natural = 0
    outputs: Amount = 0.0
    seconds: dict[str, Duration] = {}
