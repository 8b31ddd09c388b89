"""The memory and the messages of a method, computed before anything runs, for `istbench plan`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from istbench.cluster.trace_builder import TraceBuilder
from istbench.fabric.exchanges import Turn, not_empty, post_turns
from istbench.methods.optimizer import OptimizerOptions


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A local step on the meta device.

    Attributes:
        peak: the most bytes at one time of activations and gradients. None if the step does not run there.
        batch: bytes of its minibatch, which `peak` includes.
        flops: floating-point operations of its matrix products, None as for `peak`. bytes: that its other
            operations read and write.
        uses: trained parameters, by number, in the order of their first use, each with the share of the operations
            before it. ready: the same in the order in which gradients are complete.
    """

    peak: int | None
    batch: int
    flops: float | None
    uses: tuple[tuple[int, float], ...]
    ready: tuple[tuple[int, float], ...]
    bytes: float = 0.0


class PlannedNode:
    """The trace of one node for planned rounds; takes the place of a recorder.

    Attributes:
        cost: of a local step of `seconds`. builder: holds the trace.
    """

    finished = False

    def __init__(self, rank: int, world_size: int, cost: StepCost, seconds: float) -> None:
        self.rank, self.world_size = rank, world_size
        self.builder = TraceBuilder(lambda: 0.0)
        self.cost, self._seconds = cost, seconds
        self._done = 0.0

    @property
    def peers(self) -> list[int]:
        """The other ranks, from the next one on."""
        return [(self.rank + further) % self.world_size for further in range(1, self.world_size)]

    def post(
        self, kind: str, bytes: int, peers: Sequence[int] = (), priority: int = 0, after: Sequence[int] = ()
    ) -> int:
        """An operation starts; see `TraceBuilder.post`."""
        return self.builder.post(kind, bytes, peers, priority, after)

    def wait(self, ops: Iterable[int]) -> None:
        """Wait for the operations `ops`."""
        for op in ops:
            self.builder.wait(op)

    def worked(self, op: int, seconds: float) -> None:
        """Work `op` beside the training thread takes `seconds`."""

    def update(self, share: float = 1.0) -> None:
        """The optimizer steps over `share` of the values of the model. In a plan, that takes no time."""

    def update_seconds(self, share: float) -> float:
        """Seconds of a server's update of `share` of the values, with the gradients of all nodes."""
        return 0.0

    def steps(self, count: int, *, updates: bool = True) -> None:
        """`count` local steps without an exchange. updates: whether the optimizer steps in them."""
        self.builder.compute(count * self._seconds)

    def all_reduce(self, bytes: int) -> None:
        """All-reduce `bytes` bytes, and wait for it."""
        self.wait([self.post("all_reduce", bytes)])

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> "PlannedTransfers":
        """Gather `mine` (meta device) of all nodes; see `Fabric.all_gather_async`."""
        return PlannedTransfers(self, [self.post("all_gather", mine.nbytes)])

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> "PlannedTransfers":
        """Average `parts` (meta device) over all nodes; see `Fabric.reduce_scatter_mean_async`."""
        return PlannedTransfers(self, [self.post("reduce_scatter", parts.nbytes)])

    def exchange_async(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str
    ) -> "PlannedTransfers":
        """Exchange buffers (meta device) with peers; see `Fabric.exchange_async`."""
        numbers = [self._post_receive(peer, buffer) for peer, buffer in not_empty(receives).items()]
        numbers += [self._post_send(peer, buffer) for peer, buffer in not_empty(sends).items()]
        return PlannedTransfers(self, numbers)

    def exchange_in_turns_async(self, turns: Sequence[Turn], name: str) -> "PlannedTransfers":
        """Exchange buffers (meta device) in turns; see `Fabric.exchange_in_turns_async`."""
        turns = [(not_empty(leaving), not_empty(arriving)) for leaving, arriving in turns]
        return PlannedTransfers(self, post_turns(turns, self._post_receive, self._post_send))

    def _post_receive(self, peer: int, buffer: Tensor) -> int:
        return self.post("receive", buffer.nbytes, [peer])

    def _post_send(self, peer: int, buffer: Tensor, after: Sequence[int] = ()) -> int:
        return self.post("send", buffer.nbytes, [peer], after=after)

    def forward(self) -> Iterator[int]:
        """A forward pass; yields each trained parameter before its first use."""
        self._done = 0.0
        for number, share in self.cost.uses:
            self._compute_to(share)
            yield number

    def backward(self) -> Iterator[int]:
        """The backward pass after a forward pass; yields each trained parameter once its gradient is complete."""
        for number, share in self.cost.ready:
            self._compute_to(share)
            yield number
        self._compute_to(1.0)

    def _compute_to(self, share: float) -> None:
        if share > self._done:
            self.builder.compute((share - self._done) * self._seconds)
            self._done = share


class PlannedTransfers:
    """Transfers of a planned node in flight."""

    def __init__(self, node: PlannedNode, numbers: Sequence[int]) -> None:
        self._node, self._numbers = node, numbers

    def wait(self) -> None:
        """Wait until they are complete."""
        self._node.wait(self._numbers)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory and messages of the busiest node of a method: bytes, and tensors on the meta device.

    Attributes:
        model: the model of the node's loss. Its parameters, buffers and gradients count.
        rounds: returns an iterator for a node; each `next` traces the next round of that node. None if the trace
            is too long.
        optimizer_state: bytes.
        stepped: the tensors that one optimizer steps at once; build: makes that optimizer over some tensors.
        shards: the parts of the model's parameters, and of their gradients, that the node keeps if it gathers the
            rest when it computes; None if it keeps all.
        parameters_beside: bytes of parameters outside the model, such as home shards.
        gradients_copied: whether each computed gradient is copied to permanent memory.
        buffers: bytes of permanent buffers. gloo_buffers: bytes of more of them, which gloo's collectives need.
        round_buffers: bytes of the buffers of an exchange, which exist beside gradients, without activations.
        samples: samples of a minibatch that pass through the model at once.
        window: as in `TraceMeta`.
        unlike_steps, last_bytes: as in `TraceMeta`.
        notes: facts that the figures leave out, a phrase each.
        before: the footprint of an earlier part of the run, which may need more memory.
        gathered: bytes of a local step as in `cluster.speed.StepWork`; 0 for a method without kernels of its own.
    """

    model: nn.Module
    rounds: Callable[[PlannedNode], Iterator[None]] | None
    optimizer_state: int
    stepped: tuple[Tensor, ...]
    build: Callable[[list[nn.Parameter]], object]
    samples: int
    shards: tuple[nn.Parameter, ...] | None = None
    parameters_beside: int = 0
    gradients_copied: bool = False
    buffers: int = 0
    gloo_buffers: int = 0
    round_buffers: int = 0
    window: int | None = None
    unlike_steps: int = 0
    last_bytes: int = 0
    notes: tuple[str, ...] = ()
    before: "Footprint | None" = None
    gathered: float = 0.0


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of `model` that have gradients, in its order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of `tensors`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def batch_tensors(batch: Iterable[object]) -> list[Tensor]:
    """The tensors of a minibatch, also those inside objects that stand for a tensor."""
    parts = [part if isinstance(part, Tensor) else vars(part) for part in batch]
    return [leaf for leaf in tree_leaves(parts) if isinstance(leaf, Tensor)]


OwnOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer | None]
"""Builds a workload's own optimizer over some parameters."""


def whole_model(
    model: nn.Module,
    options: OptimizerOptions,
    rounds: Callable[[PlannedNode], Iterator[None]],
    batch_size: int,
    *,
    gradients_copied: bool = False,
    own: OwnOptimizer | None = None,
) -> Footprint:
    """The footprint of a method that keeps the whole of `model` and its optimizer's state on every node.

    own: the workload's optimizer, in place of that of `options`.
    """
    parameters = trained(model)
    outer = options.rule.as_vectors(model)

    def build(tensors: list[nn.Parameter]) -> object:
        same = zip(tensors, parameters, strict=True)
        return options.build(tensors, as_vectors=[own for own, like in same if any(like is one for one in outer)])

    return Footprint(
        model=model,
        rounds=rounds,
        optimizer_state=options.state_bytes(parameters, outer) if own is None else _state_bytes(own, parameters),
        stepped=tuple(parameters),
        build=own or (build if outer else options.build),
        samples=batch_size,
        gradients_copied=gradients_copied,
    )


def _state_bytes(own: OwnOptimizer, parameters: list[nn.Parameter]) -> int:
    """Bytes that an optimizer over `parameters` (meta device) keeps after a step."""
    tensors = [nn.Parameter(torch.empty_like(parameter)) for parameter in parameters]
    for tensor in tensors:
        tensor.grad = torch.empty_like(tensor)
    optimizer = own(tensors)
    assert optimizer is not None
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return tensor_bytes(kept)
