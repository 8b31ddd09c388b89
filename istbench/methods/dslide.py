"""Distributed SLIDE: trains the outputs of a wide softmax that hashing finds (arXiv 2201.12667, 1903.03129).

The nodes share the model as in `model_parallel`. Each node keeps L hash tables of K functions each over the weights
of its own outputs. It looks up the hidden layer of each sample in these tables. Outputs in the same bucket of some
table are active: their weights are probably near the hidden layer, so their values are probably large. Weights
change, so the node rebuilds its tables on a schedule, with new functions and a new K and L. The number of active
outputs stays the same. A later table finds the outputs that one table misses.

istbench adds two parts to the active outputs; an option switches each off. `common_share`: the outputs that are
largest for the mean hidden layer are active for all samples. `random_share`: random outputs represent all inactive
outputs in the softmax. Otherwise inactive outputs would never learn that they are wrong.

In the paper each node gathers all active outputs of the others. The nodes of istbench exchange only the largest
output and the sum of exponentials of every sample. This gives the same softmax.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count
from istbench.base.options.options import option
from istbench.base.seeds import derived_seed
from istbench.methods.active_outputs import ActiveOptions, ActiveOutputs
from istbench.methods.base import counted
from istbench.methods.cut_model import wide_softmax
from istbench.methods.slide.active import no_labels
from istbench.methods.slide.choosing import MOST_TABLES
from istbench.methods.slide.dwta import DWTA
from istbench.methods.slide.hashing import MOST_BITS, tables_bytes
from istbench.methods.slide.index import Index, RebuildSchedule
from istbench.methods.slide.shard import OutputShard
from istbench.methods.slide.simhash import SimHash
from istbench.workloads.base import Workload

_FAMILIES = {"simhash": SimHash, "dwta": DWTA}
_CHOSEN_BY = 256  # samples for the choice of K and L
_RECALLED, _RECALLED_FOR = 100, 32  # largest outputs, and samples
_Share = Annotated[float, Meta(ge=0, lt=1)]


class DistributedSLIDE(ActiveOutputs):
    """A split model trained by its true outputs and the outputs that locality-sensitive hashing finds."""

    name = "dslide"

    @dataclass(frozen=True, kw_only=True)
    class Options(ActiveOptions):
        family: Literal["simhash", "dwta"] = option("dwta", "hash functions")
        functions: Annotated[int, Meta(ge=0, le=MOST_BITS)] = option(
            0, "K, functions of a table; 0 to choose K and L by target_active"
        )
        tables: Annotated[int, Meta(ge=0, le=10_000)] = option(0, "L, tables; 0 to choose K and L by target_active")
        common_share: _Share = option(
            0.4, "share of target_active that all samples have: largest for the mean hidden layer"
        )
        random_share: _Share = option(
            0.2, "share of target_active for random outputs, which stand for all inactive ones"
        )
        rebuild_first: Count = option(20, "steps before the first rebuild of the tables")
        rebuild_growth: Annotated[float, Meta(ge=0, le=10)] = option(
            0.1, "steps between rebuilds grow by e to this power; 0 for no growth"
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if bool(self.functions) != bool(self.tables):
                raise UserError("functions (K) and tables (L) belong together; give both, or target_active instead")
            if self.functions and self.target_active:
                raise UserError("target_active chooses functions and tables; leave it out, or leave out both")
            if self.common_share + self.random_share >= 1:
                raise UserError("common_share and random_share leave no outputs for hashing; lower one")

    def _build_shard(self, weight: np.ndarray, bias: np.ndarray, workload: Workload) -> OutputShard:
        options, outputs = self.options, self._softmax.outputs.size
        active = self._own_share(options.active(outputs))
        common, random = (round(share * active) for share in (options.common_share, options.random_share))
        target = active if active == len(weight) else max(1, active - common - random)
        self._chosen_by = self._some_inputs(workload)
        self._index = Index(
            _FAMILIES[options.family],
            weight,
            bias,
            self._threads,
            functions=options.functions,
            tables=options.tables,
            target=0 if options.functions else target,
            common=common,
            schedule=RebuildSchedule(first=options.rebuild_first, growth=options.rebuild_growth),
            seed=derived_seed(self.seed, "tables", self._fabric.rank),
        )
        self._note = ""
        self._hidden: np.ndarray = np.empty((0, self._softmax.units.size), np.float32)  # of the last step
        return self._shard_of(weight, bias, index=self._index, random=random)

    def _some_inputs(self, workload: Workload) -> Any:
        """Some samples, for the choice of the first tables."""
        count = min(_CHOSEN_BY, workload.train_size)
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "choosing"))
        some = torch.randperm(workload.train_size, generator=generator)[:count]
        return workload.train_batch(some, generator)[0]

    @torch.no_grad()
    def _build_tables(self) -> None:
        """Build the first tables, unless they exist. Every rank does so in its first step, on the clock."""
        if self._index.built:
            return
        with self._fabric.accounting("control"):
            hidden = self._exchange.gather(self._softmax.hidden(self._part, self._chosen_by))
        self._index.build(np.asarray(hidden.contiguous().numpy()))
        self._note = self._starting_note()

    def note(self) -> str:
        return self._note

    def _starting_note(self) -> str:
        """The sizes of the first tables of this process."""
        family, outputs = self._index.family, self._softmax.outputs.size
        told = f"; they should make {self.options.active(outputs):,} of {outputs:,} outputs active"
        return (
            f"node 0 starts with K={family.functions} functions ({self.options.family}), L={family.tables} tables "
            f"over {len(self._rows):,} outputs, {self._index.tables.bytes / 1e6:,.1f} MB"
            f"{'' if self.options.functions else told}"
        )

    def figures(self) -> dict[str, float]:
        """Adds `recall@100`: the share of some samples' largest outputs that tables or common rows make active."""
        figures = super().figures()
        # A resumed run may evaluate before it trains: it has figures of the steps before, but no minibatch.
        looked_up = {f"recall@{_RECALLED}": self._recall()} if figures and len(self._hidden) else {}
        return figures | looked_up

    @torch.no_grad()
    def _recall(self) -> float:
        """The share of the largest outputs of all nodes looked up, for samples of the last minibatch."""
        fabric, count = self._fabric, min(_RECALLED, self._softmax.outputs.size)
        hidden = self._hidden[:_RECALLED_FOR]
        weight, bias = self._softmax.output_weights(self._part)
        own = torch.addmm(bias, torch.from_numpy(hidden), weight.t()).topk(min(count, len(bias)))
        largest = torch.full((len(hidden), count), -torch.inf)
        largest[:, : own.values.shape[1]] = own.values
        with fabric.accounting("control"):
            of_all = torch.cat([*self._exchange.each(largest, "comparing the largest outputs")], 1)
        least = of_all.topk(count).values[:, -1:]
        there = self._shard.active(hidden, no_labels(len(hidden)), self.local_step).have(own.indices.numpy())
        found = float((torch.from_numpy(there) & (own.values >= least)).sum())
        return min(1.0, fabric.total(found) / largest.numel())

    def _step_outputs(self, hidden: np.ndarray, targets: Any) -> tuple[float, np.ndarray]:
        self._hidden = hidden
        with self._timed("rebuild"):
            self._build_tables()
        return super()._step_outputs(hidden, targets)

    def _stepped(self) -> None:
        self._index.stepped(self.local_step + 1, self._hidden)

    def state_dict(self) -> dict[str, Any]:
        self._build_tables()
        state = {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in self._index.state().items()
        }
        return {**super().state_dict(), "index": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        index = state["index"]
        arrays = {name: index[name].numpy() for name in ("rows", "starts", "common")}
        _check_rows(arrays["rows"], arrays["starts"], arrays["common"], len(self._rows))
        functions, rebuilds = (counted(index, name) for name in ("functions", "rebuilds"))
        self._index.load(**arrays, functions=functions, rebuilds=rebuilds)
        self._note = self._starting_note()

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        super().check(options, model, workload, world_size)
        softmax = wide_softmax(cls.name, model, workload, world_size)
        rows, bits = -(-softmax.outputs.size // world_size), _bits(options.family, softmax.units.size)
        if options.functions * bits > MOST_BITS:
            wanted = tables_bytes(rows, options.tables, options.functions, bits)
            raise UserError(
                f"functions={options.functions} of {bits} bits are too many: {options.tables} tables of "
                f"2^{options.functions * bits} buckets over {rows:,} outputs a node take {wanted / 1e9:,.1f} GB, "
                f"and a code has at most {MOST_BITS} bits; lower functions"
            )

    def index_bytes(self, rows: int, width: int) -> int:
        """Bytes of the tables; the most possible if istbench chooses them."""
        bits = _bits(self.options.family, width)
        if self.options.functions:
            return tables_bytes(rows, self.options.tables, self.options.functions, bits)
        return tables_bytes(rows, MOST_TABLES, (rows - 1).bit_length(), 1)


def _check_rows(rows: np.ndarray, starts: np.ndarray, common: np.ndarray, size: int) -> None:
    """Refuse rows with which a kernel would read or write outside its arrays."""
    if any(len(own) and (own.min() < 0 or own.max() >= size) for own in (rows.ravel(), common.ravel())):
        raise ValueError("tables of other outputs")
    if starts.min() < 0 or starts.max() > size or np.diff(starts).min() < 0:
        raise ValueError("tables of other outputs")


def _bits(family: str, width: int) -> int:
    """Bits of a hash function over vectors of `width` entries."""
    return _FAMILIES[family](width, 0, 0, 0).bits
