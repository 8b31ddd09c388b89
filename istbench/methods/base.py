"""The method contract, and what methods share: initial weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from istbench.config.numbers import Natural
from istbench.door import convert
from istbench.errors import UserError
from istbench.fabric import Fabric
from istbench.footprint import Footprint

# Plug-ins of before import these from here.
from istbench.optimizer import OptimizerOptions, load_optimizer_state, optimizer_state, set_rate
from istbench.workloads.base import Batch, Workload

__all__ = [
    "Method",
    "OptimizerOptions",
    "counted",
    "is_parameter",
    "load_optimizer_state",
    "materialise",
    "optimizer_state",
    "set_rate",
    "with_storage",
]


class Method(ABC):
    """One way of training on several nodes. It owns its optimizer and talks only through the fabric.

    name: as typed on the command line.
    Options: a frozen dataclass of the method's options, all with defaults; their types have bounds,
        and each field's `metadata["help"]` is shown to users. Its `__post_init__` raises `UserError` for options
        that do not go together.
    exact_on_one_node: whether one node trains exactly as without any method, which `istbench check` then proves.
    batches: "sharded" where each node takes its own minibatch, "replicated" where all take the same one.
    scheduled: whether every local step has `learning_rate`; where not, options that would change it are refused.
    compilable: whether nothing but the model's whole forward pass matters to it, so that this may be compiled;
        interrupts: what it does inside a forward pass where not.
    cuts_units: whether it cuts the model by the workload's neuron groups.
    own_kernels: whether it computes by kernels of its own: in float32, on processors alone.
    total_steps: local steps of the budget, told before `setup`; 0 where there is no budget.
    local_step: number of the local step that `step` is to take, from 0; told before each.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    exact_on_one_node: ClassVar[bool] = True
    batches: ClassVar[Literal["sharded", "replicated"]] = "sharded"
    scheduled: ClassVar[bool] = False
    compilable: ClassVar[bool] = True
    cuts_units: ClassVar[bool] = False
    own_kernels: ClassVar[bool] = False
    interrupts: ClassVar[str] = "waits for parameters module by module inside a forward pass"

    total_steps: int = 0
    local_step: int = 0

    def __init__(self, options: Any = None, *, seed: int = 0) -> None:
        self.options = self.Options() if options is None else options
        self.seed = seed

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        """Refuse, before any process starts, what cannot work. `model` is on the meta device.

        Raises:
            UserError: naming what does not fit.
        """
        return

    @property
    def learning_rate(self) -> float:
        """The learning rate of the local step that is to be taken, by the options' schedule."""
        return float(self.options.rate_at(self.local_step, self.total_steps))

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint | None:
        """What the busiest of `world_size` nodes holds of `model` (meta device) and sends; None where not known.

        Called after `check`, before any process starts; allocates nothing.
        """
        return None

    def least_batch(self, batch_size: int) -> int:
        """Samples of the smallest part of a minibatch that passes through the model at once."""
        return batch_size

    @abstractmethod
    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        """Take `model` (meta device, no storage) and materialise what this node keeps of it."""

    @abstractmethod
    def step(self, batch: Batch) -> Tensor:
        """One local step on this node's minibatch, and the exchange where a round ends.

        Returns the loss as a detached scalar. Leaves nothing half done: `assemble` is defined after any step.
        """

    @property
    def round_steps(self) -> int:
        """Local steps of a round, whose last one ends in the exchange; the same all along and on every node."""
        return 1

    def close_round(self) -> None:
        """End the round under way with its exchange, as its last step would; the next one is a whole round again.

        Called on every rank, on the clock, where a budget ends inside a round, and only there. The assembled model
        stays what it is.
        """
        return

    def note(self) -> str:
        """A line for the user on what this run actually does, known once it trains; may be empty."""
        return ""

    def figures(self) -> dict[str, float]:
        """Figures of the training since the last call, by name, to be recorded beside an evaluation's metrics.

        Called on every rank, outside the clock; those of rank 0 count.
        """
        return {}

    def drain(self) -> None:
        """Finish what `step` left under way. Called on every rank before the clock stops."""
        return

    @abstractmethod
    def assemble(self) -> nn.Module | None:
        """The full model on rank 0, None elsewhere. Called on every rank, outside the clock.

        What it returns may be the live model: callers must leave its tensors and its mode as they were.
        """

    def blocks(self) -> Callable[[str, int, int, int], Tensor | None] | None:
        """What reads the full model a block at a time, where no node need hold it; None where `assemble` is all.

        It is called as (name, dim, first, last) on every rank alike, until the next step, and returns entries
        `first` to `last` (exclusive) along `dim` of parameter or buffer `name` of the model that `assemble` gives:
        on rank 0, None elsewhere. A tensor without dimensions is all in one block. Called on every rank, outside
        the clock.
        """
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """This node's state: a nested dictionary with string keys of tensors and JSON values, enough to go on
        bit for bit."""

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        """Whether all nodes have the same tensor, bit for bit, at `keys` of `state_dict()` as it is now.

        A checkpoint holds such tensors once. A node whose shared tensors differ nevertheless keeps its own.
        """
        return False

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict` of the same rank; called after `setup`."""


def counted(state: dict[str, Any], name: str, *, below: int | None = None) -> int:
    """The count `name` in a checkpoint's `state`, less than `below` where that is given.

    Raises:
        UserError: where it is none.
    """
    count = convert(state.get(name), Natural, lambda _: name)
    if below is not None and count >= below:
        raise UserError(f"{name} must be less than {below}, not {count}")
    return count


def is_parameter(model: nn.Module, name: str) -> bool:
    """Whether `model.state_dict()` has a parameter of that name, rather than a buffer."""
    return any(name == other for other, _ in model.named_parameters(remove_duplicate=False))


def materialise(model: nn.Module, workload: Workload, seed: int, device: torch.device) -> nn.Module:
    """Give the whole of `model` storage on `device` and its initial values of `seed`; returns it."""
    blank = with_storage(model, device)
    with torch.no_grad():
        for name, parameter in blank.named_parameters():
            parameter.copy_(workload.initial_rows(model, name, None, seed))
        for name, buffer in blank.named_buffers():
            buffer.copy_(workload.initial_buffer(model, name))
    return blank


def with_storage(model: nn.Module, device: torch.device) -> nn.Module:
    """`model`, given storage on `device`, without values; a parameter with several names stays one."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    blank = model.to_empty(device=device)
    for first, *others in names.values():
        for name in others:  # a shared parameter: moving a model gives every name its own
            owner, _, short = name.rpartition(".")
            setattr(blank.get_submodule(owner), short, blank.get_parameter(first))
    return blank
