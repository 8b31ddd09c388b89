"""The contract of a method, its optional parts, and the initial weights that methods share."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from istbench.base.decode import convert
from istbench.base.errors import UserError
from istbench.base.options.numbers import Natural
from istbench.fabric import Fabric
from istbench.methods.footprint import Footprint
from istbench.methods.optimizer import OptimizerOptions, set_rate
from istbench.workloads.base import Batch, Workload
from istbench.workloads.initialise import with_storage

OwnObject = Literal["kept", "moved", "copied", "rebuilt", "gathered"]
Unequal = Literal["", "gradients", "models", "units"]


class Method(ABC):
    """A way of training on several nodes. It owns its optimizer and communicates only through the fabric.

    A method must have the five functions below, `name`, `Options` and `batches`. All else has a default here, or is
    a part of its own (below this class) that a method has as soon as it has the function of that part.

    name: as typed on the command line.
    Options: a frozen dataclass of the method's options, all with defaults. Their types have bounds, and users see
        each field's `metadata["help"]`. Its `__post_init__` raises `UserError` for options that exclude each other.
    batches: "sharded" where each node takes its own minibatch, "replicated" where all take the same one.
    """

    name: ClassVar[str]
    Options: ClassVar[type]
    batches: ClassVar[Literal["sharded", "replicated"]] = "sharded"

    @abstractmethod
    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        """Take `model` (meta device, no storage) and materialise the part that this node keeps."""

    @abstractmethod
    def step(self, batch: Batch) -> Tensor:
        """One local step on this node's minibatch, and the exchange where a round ends.

        Returns the loss as a detached scalar. Leaves nothing half done: `assemble` is defined after any step.
        """

    @abstractmethod
    def assemble(self) -> nn.Module | None:
        """The full model on rank 0, None elsewhere. Every rank calls it, outside the clock.

        It may return the live model: callers must not change its tensors or its mode.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """This node's state, enough to resume bit for bit.

        A nested dictionary with string keys; its values are tensors and JSON values.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state_dict` of the same rank; called after `setup`."""

    @classmethod
    def minibatches(cls, nodes: int) -> int:
        """The number of different minibatches in a step of `nodes` nodes."""
        return 1 if cls.batches == "replicated" else nodes

    # Before a run.

    exact_on_one_node: ClassVar[bool] = True
    """Whether one node trains exactly as without a method; `istbench check` then proves it."""

    own_object: ClassVar[OwnObject] = "kept"
    """What it does with a model object of the user: keeps it as it is; moves its tensors to other memory; also
    evaluates copies of it; builds it again from its named values; or does so and gathers copies of these for each
    step. istbench proves all but the first."""

    all_gradients: ClassVar[bool] = False
    """Whether every minibatch must give every parameter a gradient."""

    interrupts: ClassVar[str] = ""
    """The action of the method inside a forward pass, for the refusal of `--compile`; empty for none."""

    usual_place: ClassVar[int] = 9
    """Its place in the order in which people try methods, from 0; the same for all that few people try first.

    A method that extends another one does not take its place.
    """

    control_nodes: ClassVar[int | None] = None
    """Number of nodes whose row belongs beside every other row of the method in a table; None for none.
    `istbench compare` runs it too."""

    narrow_control: ClassVar[bool] = False
    """Whether `istbench compare --controls` also trains it at the width of another method's subnet."""

    joint_rounds: ClassVar[bool] = False
    """Whether a round of all nodes is one optimizer step, on the mean gradient of its minibatches."""

    round_option: ClassVar[str] = ""
    """The option that sets `round_steps`, and changes nothing that a step computes; empty for none."""

    message_options: ClassVar[tuple[str, ...]] = ()
    """The options for the form of its messages. `istbench advise` tries the choices of those of `ddp`."""

    def __init__(self, options: Any = None, *, seed: int = 0) -> None:
        self.options = self.Options() if options is None else options
        self.seed = seed
        if self.own_updates and isinstance(self.options, OptimizerOptions) and self.options.rule.whole_matrices:
            raise UserError(
                f"{self.name} {self.own_updates}, and {self.options.optimizer} needs whole matrices; use "
                "optimizer=adamw, or ddp, local_sgd, diloco and its kin"
            )

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        """Refuse, before any process starts, options that cannot work. `model` is on the meta device.

        Raises:
            UserError: naming the option or the layer that does not fit.
        """
        return

    # Unequal nodes.

    unequal: ClassVar[Unequal] = ""
    """What unequal nodes (`--shares`) change in it, empty if it cannot train on them. gradients: it averages
    gradients alone, and istbench scales those of each node by its samples. models: it weighs its averages by
    `samples`. units: it deals units by `shares`, and all minibatches are equal."""

    samples: Sequence[int] = ()
    """Samples of each node's minibatch, by rank; empty if all are equal. Set before `setup`."""

    shares: Sequence[float] = ()
    """Relative speeds of the nodes to which it deals units, by rank; empty if all are equal. Set before `setup`."""

    # The optimizer.

    scheduled: ClassVar[bool] = False
    """Whether every local step uses `learning_rate`; if not, istbench refuses options that change it."""

    own_updates: ClassVar[str] = "builds its own optimizer"
    """Why it cannot step an optimizer of the workload, nor one of whole matrices; empty if it can, by
    `build_optimizer` and `set_rates`."""

    total_steps: int = 0
    """Local steps of the budget, set before `setup`; 0 without a budget."""

    local_step: int = 0
    """Number of the next local step, from 0; set before each call of `step`."""

    schedule_step: int = 0
    """Place of the next local step in the budget; set before each call of `step`. It is `local_step`, unless fewer
    nodes train than the cell has (`--elastic`)."""

    _own_rates: list[Any] | None = None

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next local step, by the schedule of the options."""
        return float(self.options.rate_at(self.schedule_step, self.total_steps))

    def build_optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """The optimizer of `workload` over the parameters of `model`, or that of the options."""
        parameters = list(model.parameters())
        own = workload.optimizer(parameters) if workload.optimizer else None
        self._own_rates = None if own is None else [group["lr"] for group in own.param_groups]
        if own is None:
            own = self.options.build(parameters, as_vectors=self.options.rule.as_vectors(model))
        return own

    def set_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rates of the next local step. A schedule scales those of a workload's optimizer."""
        if self._own_rates is None:
            set_rate(optimizer, self.learning_rate)
        elif self.options.schedule != "constant" or self.options.warmup:
            share = dataclasses.replace(self.options, lr=1.0).rate_at(self.schedule_step, self.total_steps)
            for group, rate in zip(optimizer.param_groups, self._own_rates, strict=True):
                group["lr"] = rate * share

    # Rounds and checkpoints.

    @property
    def round_steps(self) -> int:
        """Local steps in a round, of which the last one exchanges; constant, and the same on every node."""
        return 1

    def close_round(self) -> None:
        """End the current round early with its exchange; the next round is whole again.

        Every rank calls it, on the clock, only if a budget ends inside a round. It does not change the assembled
        model.
        """
        return

    def drain(self) -> None:
        """Finish transfers that `step` started. Every rank calls it before the clock stops."""
        return

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        """Whether all nodes now have the same tensor, bit for bit, at `keys` of `state_dict()`.

        A checkpoint holds such a tensor once. A node whose tensor still differs keeps its own.
        """
        return False

    # What a method may also tell.

    def least_batch(self, batch_size: int) -> int:
        """Samples in the smallest part of a minibatch, where it passes through the model in parts."""
        return batch_size

    def compresses(self) -> bool:
        """Whether its messages have fewer bits than the values for which they stand, by its options."""
        return False

    def joint_steps(self) -> bool:
        """Whether a local step of all nodes is one optimizer step on their joint minibatch, up to rounding.

        `istbench advise` trains only the fastest of such methods.
        """
        return self.joint_rounds and self.round_steps == 1 and not self.compresses()

    def accumulation(self) -> int:
        """Where nodes average their models, the length of the rounds in which `ddp` sends as many bytes.

        The bytes are those of as many local steps; 1 for none.
        """
        return 1


# Optional parts of a method. A method needs no other base class: its function is enough.


@runtime_checkable
class Planned(Protocol):
    """Its memory and messages follow from sizes."""

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint | None:
        """Memory and messages of the busiest of `world_size` nodes for `model` (meta device); None if unknown.

        `istbench plan` calls it after `check`, before any process starts; it allocates nothing.
        """


@runtime_checkable
class AssembledInBlocks(Protocol):
    """Its full model can be read block by block, so that no node holds it."""

    def blocks(self) -> Callable[[str, int, int, int], Tensor | None] | None:
        """A function that reads a block, or None if the options need the assembled model.

        Every rank calls the function alike as (name, dim, first, last), until the next step. On rank 0 it returns
        entries `first` to `last` (exclusive) along `dim` of parameter or buffer `name` of the assembled model;
        elsewhere None. A tensor without dimensions is one block. Every rank calls `blocks`, outside the clock.
        """


@runtime_checkable
class EvaluatedInParts(Protocol):
    """Every node keeps a part of its full model, and all nodes evaluate it together."""

    def evaluate_part(self, workload: Workload, batches: Iterator[Batch]) -> dict[str, float]:
        """`Workload.evaluate_part` of this node's part.

        Every rank calls it with the same batches, outside the clock, if the workload evaluates parts.
        """


@runtime_checkable
class CutsUnits(Protocol):
    """It cuts the model by the workload's neuron groups."""

    def narrowing(self, world_size: int) -> int:
        """The number that divides the units of the full model in the part that one of `world_size` nodes trains.

        1 if layers are cut differently.
        """


@runtime_checkable
class ChecksShares(Protocol):
    """It cannot deal its units by all shares of unequal nodes."""

    def check_shares(self, model: nn.Module, workload: Workload, shares: Sequence[float]) -> None:
        """Refuse, before any process starts, `shares` by which it cannot deal units of `model` (meta device).

        Raises:
            UserError: naming the node or the units that do not fit.
        """


@runtime_checkable
class Remarks(Protocol):
    """It has a line about the model before a run."""

    def remark(self, model: nn.Module, workload: Workload, world_size: int) -> str:
        """The line about `model` (meta device), which `check` has accepted; may be empty."""


@runtime_checkable
class Notes(Protocol):
    """It has a line about a run that trains."""

    def note(self) -> str:
        """The line; may be empty."""


@runtime_checkable
class Figures(Protocol):
    """It has figures of its training."""

    def figures(self) -> dict[str, float]:
        """Figures since the last call, by name. An evaluation records them beside its metrics.

        Every rank calls it, outside the clock; istbench records those of rank 0.
        """


@runtime_checkable
class OwnKernels(Protocol):
    """It computes with its own kernels, in float32 and on CPUs only."""

    def gathered_bytes(self) -> float:
        """Bytes that the kernels, which torch does not see, read and wrote in the last local step of this node."""


@runtime_checkable
class EndsWithExchange(Protocol):
    """The model that is evaluated is made of all nodes' models, which differ also between rounds."""

    def finish(self) -> None:
        """Give every node that model. Every rank calls it, on the clock, after the last step of a run."""


@runtime_checkable
class Reshards(Protocol):
    """Its checkpoint can be loaded by another number of nodes, as `--elastic` needs."""

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        """The state of node `rank` of this group, from the states of all nodes of a group of another size.

        Called after `setup`. `states` are read from a checkpoint as they are asked for, and must not change; nor
        does this node. The assembled model stays the same, bit for bit where the nodes agreed on it. So does
        optimizer state that is the same on all nodes, or cut between them. What each node has for itself (a local
        momentum, changes that were not sent) becomes the mean over the old nodes, for every new one. The round
        goes on where it was.
        """


def counted(state: dict[str, Any], name: str, *, below: int | None = None) -> int:
    """The count `name` in the `state` of a checkpoint.

    Raises:
        UserError: if it is no count, or not less than `below`.
    """
    count = convert(state.get(name), Natural, lambda _: name)
    if below is not None and count >= below:
        raise UserError(f"{name} must be less than {below}, not {count}")
    return count


def all_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of `parameters`; zeros, from now on, of one that no minibatch of this node used."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    return gradients


def fitting(saved: Tensor, place: Tensor, what: str) -> Tensor:
    """The tensor `saved` of a checkpoint, which belongs in `place`; `what` names it in errors.

    Raises:
        ValueError: if it has another shape or type.
    """
    if (saved.shape, saved.dtype) != (place.shape, place.dtype):
        raise ValueError(f"{what} of another size or type")
    return saved


def is_parameter(model: nn.Module, name: str) -> bool:
    """Whether `name` in `model.state_dict()` is a parameter, not a buffer."""
    owner, _, short = name.rpartition(".")
    try:
        return short in model.get_submodule(owner)._parameters
    except AttributeError:  # hooks of the model may give other names
        return False


def materialise(model: nn.Module, workload: Workload, seed: int, device: torch.device) -> nn.Module:
    """The whole model on `device` with the initial values of `seed`: the user's own object, else `model` filled."""
    own = workload.own_model(seed)
    return filled(model, workload, seed, device) if own is None else own.to(device)


def filled(model: nn.Module, workload: Workload, seed: int, device: torch.device) -> nn.Module:
    """Give all of `model` storage on `device` and the initial values of `seed`, name by name; returns it."""
    blank = with_storage(model, device)
    with torch.no_grad():
        for name, parameter in blank.named_parameters():
            parameter.copy_(workload.initial_rows(model, name, None, seed))
        for name, buffer in blank.named_buffers():
            buffer.copy_(workload.initial_buffer(model, name))
    return blank
