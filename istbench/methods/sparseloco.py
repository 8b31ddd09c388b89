"""SparseLoCo: DiLoCo that sends the largest changes of a round and keeps the others for later rounds.

Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", arXiv 2508.15706. Every node keeps the
changes that it did not send (error feedback). At the end of a round it multiplies them by `feedback` and adds the
change of the round. It sends the `top` entries of largest magnitude of each `chunk` and keeps the others. All nodes
gather all sent entries. The change of an entry is its mean over the nodes that sent it, as in the authors' code:
github.com/tplr-ai/templar, src/tplr/compress.py, `batch_decompress`. With `mean=all` it is the mean over all nodes.
The outer step is SGD: the kept changes take the place of DiLoCo's outer momentum.

All parameters are one flat tensor, in the order of the model, and chunks are runs of it. (The paper's chunks are
squares of 64 x 64 of each matrix.) A sent entry is its value, unchanged, and its place in the chunk: 2 bytes, or 1
byte in chunks of up to 256 entries. The paper also sends values in 2 bits.

Floating-point buffers, such as the statistics of BatchNorm, are averaged whole.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import LARGEST_CHUNK, Count, Rate, Share
from istbench.base.options.options import option
from istbench.base.options.tunable import LOCAL_STEPS, OUTER_MOMENTUM, OUTER_RATE
from istbench.fabric import Fabric
from istbench.methods.base import fitting
from istbench.methods.diloco import DiLoCo, OuterRoundOptions
from istbench.methods.flat import by_dtype, floating_tensors
from istbench.methods.footprint import Footprint, tensor_bytes, trained
from istbench.methods.planned_node import place_bytes, rounds_after, sent_entries
from istbench.methods.resharding import mean_tensors
from istbench.methods.weights import Weights, weigh
from istbench.workloads.base import Workload


@dataclass(frozen=True)
class Chunks:
    """A flat tensor of `length` entries in chunks of `size`; a node sends `top` entries of each chunk.

    The last chunk may be shorter. A node sends all of it if it has fewer than `top` entries.
    """

    length: int
    size: int
    top: int

    @property
    def sent(self) -> int:
        return sent_entries(self.length, self.size, self.top)

    def message_bytes(self, dtype: torch.dtype) -> int:
        return self.sent * (dtype.itemsize + self._place_type.itemsize)

    def largest(self, values: Tensor) -> Tensor:
        """Places in `values` [length] of the entries to send, int64 [sent], chunk after chunk."""
        whole = self.length // self.size
        sizes, rest = values.abs().split([whole * self.size, self.length - whole * self.size])
        inside = sizes.view(whole, self.size).topk(self.top, sorted=False).indices.flatten()
        last = rest.topk(min(self.top, len(rest)), sorted=False).indices
        return torch.cat([inside, last]) + self._starts(values.device)

    def packed(self, values: Tensor, places: Tensor) -> Tensor:
        """The entries of `values` at `places` as bytes: all values, then all places in their chunks."""
        inside = (places - self._starts(values.device)).to(self._place_type)
        return torch.cat([values[places].view(torch.uint8), inside.view(torch.uint8)])

    def unpacked(self, message: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The places and the values of `message`, which `packed` made of values of `dtype`."""
        # Copies: a view of a larger type must start at a multiple of its size.
        values = message[: self.sent * dtype.itemsize].clone().view(dtype)
        inside = message[self.sent * dtype.itemsize :].clone().view(self._place_type)
        return inside + self._starts(message.device), values

    @property
    def _place_type(self) -> torch.dtype:
        return torch.uint8 if place_bytes(self.size) == 1 else torch.int16

    def _starts(self, device: torch.device) -> Tensor:
        """The first place of the chunk of each sent entry, int64."""
        return torch.arange(self.sent, device=device) // self.top * self.size


def mean_of_sent(
    sent: Iterable[tuple[Tensor, Tensor]], like: Tensor, nodes: int | None = None, weights: Iterable[float] = ()
) -> Tensor:
    """The mean of each entry over the nodes that sent it, 0 where no node did; a flat tensor such as `like`.

    sent: places and values of each node, in rank order. A node sends a place once. A zero that was sent counts.
    nodes: take the mean over this many; those that did not send an entry count as zero.
    weights: of each node, with the mean 1; by default they are equal.
    """
    total, senders = torch.zeros_like(like), torch.zeros_like(like)
    for (places, values), weight in zip(sent, itertools.chain(weights, itertools.repeat(1.0)), strict=False):
        total.index_add_(0, places, values, alpha=weight)
        senders.index_add_(0, places, torch.ones_like(values), alpha=weight)
    return total.div_(senders.masked_fill_(senders == 0, 1) if nodes is None else nodes)


Entries = Annotated[int, Meta(ge=1, le=LARGEST_CHUNK)]


class SparseLoCo(DiLoCo):
    """DiLoCo that sends the largest changes of each chunk and keeps the others for later rounds."""

    name = "sparseloco"

    @dataclass(frozen=True, kw_only=True)
    class Options(OuterRoundOptions):
        local_steps: Count = option(15, "local steps between two exchanges", tune=LOCAL_STEPS)
        chunk: Entries = option(4096, "entries of a chunk of the flat parameters")
        top: Entries = option(32, "largest entries that a node sends of each chunk")
        feedback: Share = option(0.95, "factor of the kept changes in each round")
        mean: Literal["senders", "all"] = option(
            "senders", "mean of an entry: over the nodes that sent it, or over all, the others as zero"
        )
        outer_lr: Rate = option(1.0, "learning rate of the outer step", tune=OUTER_RATE)
        outer_momentum: Share = option(0.0, "Nesterov momentum of the outer step", tune=OUTER_MOMENTUM)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.top > self.chunk:
                raise UserError(f"top={self.top} is more than chunk={self.chunk}; set top={self.chunk} to send all")

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        super().setup(model, workload, fabric)
        flats = self._parameters_of(self._flat)
        self._chunks = [Chunks(flat.numel(), self.options.chunk, self.options.top) for flat in flats]
        self._kept = [torch.zeros_like(flat) for flat in flats]
        self._unsent = self._kept  # by the last exchange, which does not end a round in `assemble`
        fabric.prepare_exchange_async()

    def _average(self) -> None:
        super()._average()
        self._kept = self._unsent

    def _mean_changes(self, name: str) -> list[Tensor]:
        """The mean changes over the nodes that sent them, and the nodes' mean buffers."""
        means, self._unsent = [], self._outer.changes()
        buffers = self._buffers_of(self._flat)
        for changes, kept, chunks, own in zip(self._unsent, self._kept, self._chunks, buffers, strict=True):
            changes.add_(kept, alpha=self.options.feedback)
            places = chunks.largest(changes)
            message = chunks.packed(changes, places)
            changes[places] = 0
            mean = self._gathered_mean(message, changes, chunks, name)
            if own.numel():
                own = own.clone()
                weigh(own, self._weights.node)
                self._fabric.all_reduce_mean(own, name)
                mean = torch.cat([mean, own])
            means.append(mean)
        return means

    def _gathered_mean(self, message: Tensor, like: Tensor, chunks: Chunks, name: str) -> Tensor:
        messages = message.new_empty(self._fabric.world_size * message.numel())
        self._fabric.all_gather_async(messages, message, name).wait()
        by_rank = messages.split(message.numel())
        ranks = range(self._fabric.world_size)
        return mean_of_sent(
            (chunks.unpacked(sent, like.dtype) for sent in by_rank),
            like,
            self._fabric.world_size if self.options.mean == "all" else None,
            [Weights.of(self.samples, rank).node for rank in ranks],
        )

    def compresses(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": {str(number): kept for number, kept in enumerate(self._kept)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for number, kept in enumerate(self._kept):
            kept.copy_(fitting(state["kept"][str(number)], kept, "kept changes"))

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        # With the mean on every node, the mean of what is still to be sent stays the same.
        return {**super().resharded(states, rank), "kept": mean_tensors([own["kept"] for own in states])}

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """That of `diloco`, with the kept changes and an all-gather of what is sent."""
        whole = super().footprint(model, workload, world_size, batch_size)
        messages = []
        for group in by_dtype(trained(model)):
            chunks = Chunks(sum(own.numel() for own in group), self.options.chunk, self.options.top)
            messages.append(chunks.message_bytes(group[0].dtype))
        buffers = floating_tensors(model)[len(trained(model)) :]
        averaged = [tensor_bytes(group) for group in by_dtype(buffers)]

        parameters = tensor_bytes(trained(model))
        # The changes, their mean and the numbers of senders, beside the messages of all nodes.
        at_once = 3 * parameters + (world_size + 1) * sum(messages)
        return replace(
            whole,
            rounds=rounds_after(self.round_steps, averaged, messages),
            buffers=whole.buffers + parameters,
            round_buffers=at_once,
        )
