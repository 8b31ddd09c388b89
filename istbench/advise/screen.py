"""Step one of an advice: the memory and the seconds of a step of every method, from one recorded process.

One process trains a few steps. Its seconds of a step, times the ratio of the operations that the plans count, are
those of a step by any other method; the messages follow from the method's plan. The replay of both on the cluster
tells which methods can be first by their speed.
"""

import dataclasses
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from istbench.cluster.clock import ClusterTime, cluster_time
from istbench.cluster.estimate import fits
from istbench.cluster.profile import ClusterProfile, bandwidth_text, load_profile
from istbench.cluster.scale import on_gpus
from istbench.cluster.trace import Trace, TraceMeta
from istbench.config.defaults import DEFAULT_CLUSTER
from istbench.config.options import option_text
from istbench.config.run import RunRequest
from istbench.errors import UserError
from istbench.machine import cores, memory_bytes
from istbench.plan.dealt_cell import CannotDeal, DealtCell
from istbench.plan.memory import node_memory
from istbench.registry import load_method, registered

_GIB = 2**30
# A full Ethernet frame of 1514 bytes carries 1448 bytes of a TCP segment.
_PAYLOAD = 1448 / 1514
# Two processes of one machine exchange about this many bits in a second.
_LOOPBACK = 8e9
_TRACED_STEPS, _TIMED_STEPS = 20, 400
_FACTORS = (1, 4, 16)  # of the default local steps of a round
_ACCUMULATED = (2, 4, 8, 16, 32)
# A round is long enough for the network if its nodes compute this share of the time; longer ones learn less.
_COMPUTING, _ACCUMULATING = 0.9, 0.5
_SAME_SPEED = 0.98
_SAME_BYTES = 0.01

_EXACT = ("ddp", "zero", "fsdp", "parameter_server", "p3")
"""Methods that make the optimizer step of `ddp`, each in its own way: only the fastest of them can be first."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A method with options. baseline: as in `Candidate`."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    baseline: bool = False

    @property
    def label(self) -> str:
        """`local_sgd local_steps=80`."""
        return " ".join([self.method, *(f"{name}={option_text(value)}" for name, value in self.options.items())])

    def of(self, base: RunRequest, **fields: Any) -> RunRequest:
        """The request of `base` by this method, with its options and `fields`."""
        values = {name: getattr(base, name) for name in RunRequest.__struct_fields__}
        return RunRequest(**{**values, "method": self.method, "method_options": dict(self.options), **fields})


@dataclass(frozen=True, kw_only=True)
class Screened:
    """A variant after step one.

    Attributes:
        memory_bytes: of the busiest node; None if unknown. fits: whether a node of the cluster has as much.
        step_s: seconds of a local step on the cluster, exchanges included. computing: the share of them in which
            nodes compute. here_s: seconds of a local step of all nodes on this machine. None if unknown.
        round_steps: local steps of a round. cell: its plan. trace: from sizes.
        why_not: the reason in a few words why it is not trained; empty if it may be.
    """

    variant: Variant
    memory_bytes: int | None = None
    fits: bool | None = None
    step_s: float | None = None
    computing: float | None = None
    here_s: float | None = None
    round_steps: int = 1
    cell: DealtCell | None = None
    trace: Trace | None = None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The step of one process on this machine: the trace, and the seconds and operations of a step."""

    meta: TraceMeta
    step_s: float
    operations: float | None

    @classmethod
    def of(cls, trace: Trace, cell: DealtCell | None) -> "Recorded":
        """The step in `trace`, of `cell` on one node; without the cell no other step has known seconds."""
        seconds = trace.computing_s / max(1, trace.steps)
        return cls(meta=trace.meta, step_s=seconds, operations=cell.operations if cell else None)


def nodes_like_here(
    recorded: TraceMeta, *, bandwidth: float | None, latency_s: float | None, crowd: float = 1.0
) -> ClusterProfile:
    """Nodes as fast as the process that recorded `recorded`, on links of `bandwidth` bits/s.

    The costs of messages are those of the default cluster. crowd: nodes on each of this machine's cores.
    """
    base = load_profile(DEFAULT_CLUSTER)
    memory, gather = recorded.memory_gb_per_s, recorded.gather_gb_per_s
    bits = bandwidth or base.bandwidth_out
    threads = recorded.threads or 1
    return dataclasses.replace(
        base,
        name=f"machines like this one at {bandwidth_text(bits)}",
        summary="nodes that compute as this machine does",
        source="this machine",
        gflops=(Trace(nodes=(), meta=recorded).gflops or 1.0) / crowd,
        memory_gb_per_s=memory and memory / crowd,
        gather_gb_per_s=gather and gather / crowd,
        memory_gib=_memory_here(recorded) / _GIB,
        bandwidth_out=bits * _PAYLOAD,
        bandwidth_in=bits * _PAYLOAD,
        burst_bandwidth=None,
        latency_s=base.latency_s if latency_s is None else latency_s,
        cores=None if recorded.device == "cuda" else threads / crowd,
        price_per_hour=0.0,
        price_date="",
        price_source="",
    )


def as_there(trace: Trace, profile: ClusterProfile) -> Trace:
    """`trace` with the speeds of `profile`, so that a replay there keeps its seconds of computing.

    Shapes of matrix products differ by method, and so do speeds measured by them.
    """
    meta = msgspec.structs.replace(
        trace.meta,
        gflops=profile.gflops,
        memory_gb_per_s=profile.memory_gb_per_s,
        gather_gb_per_s=profile.gather_gb_per_s,
    )
    return dataclasses.replace(trace, meta=meta)


def _memory_here(recorded: TraceMeta) -> int:
    if recorded.device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    return memory_bytes()


def known_methods() -> list[str]:
    """The names of the installed methods."""
    return [entry.name for entry in registered("methods")]


class Screening:
    """Screens variants of `methods` for the cell of `base` on `cluster`.

    Args:
        base: a request on the question's nodes; its method and its method options do not count.
        given: the method options that the user set, by method.
    """

    def __init__(
        self,
        base: RunRequest,
        recorded: Recorded,
        cluster: ClusterProfile,
        given: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._base, self._recorded, self._cluster, self._given = base, recorded, cluster, given
        threads = recorded.meta.threads or 1
        crowd = max(1.0, base.nodes * threads / cores()) if recorded.meta.device != "cuda" else 1.0
        self._here = nodes_like_here(recorded.meta, bandwidth=_LOOPBACK / crowd, latency_s=None, crowd=crowd)

    def all_variants(self, methods: Iterable[str]) -> list[Screened]:
        """Every variant of `methods`, with a reason for each that cannot be first by its memory or speed."""
        found = [variant for method in methods for variant in self._of_method(method)]
        return mark_slow(found)

    def _of_method(self, method: str) -> Iterator[Screened]:
        given = self._given.get(method, {})
        kind = load_method(method, self._base.plugins)
        names = {option.name for option in dataclasses.fields(kind.Options)}
        plain = self.screened(Variant(method=method, options=given, baseline=method == "ddp"))
        yield plain
        if plain.why_not:
            return
        if method == "ddp" and "accumulate" not in given:
            yield self._first_computing(
                [Variant(method=method, options={**given, "accumulate": n}, baseline=True) for n in _ACCUMULATED],
                _ACCUMULATING,
            )
        if "compress" in names and method == "ddp" and "compress" not in given:
            for compress in _choices(kind.Options, "compress"):
                yield self.screened(Variant(method=method, options={**given, "compress": compress}))
        steps = plain.cell.method.options.local_steps if plain.cell and "local_steps" in names else 0
        if steps and "local_steps" not in given and plain.computing is not None and plain.computing < _COMPUTING:
            yield self._first_computing(
                [
                    Variant(method=method, options={**given, "local_steps": factor * steps})
                    for factor in _FACTORS[1:]
                ],
                _COMPUTING,
            )

    def _first_computing(self, variants: Sequence[Variant], share: float) -> Screened:
        """The first of `variants`, which have ever longer rounds, whose nodes compute `share` of the time."""
        found = self.screened(variants[0])
        for variant in variants[1:]:
            if found.why_not or (found.computing is not None and found.computing >= share):
                break
            found = self.screened(variant)
        return found

    def screened(self, variant: Variant) -> Screened:
        """`variant` with its memory and its seconds, as far as they are known."""
        try:
            cell = self._cell(variant, self._base.nodes)
        except CannotDeal:
            return Screened(variant=variant)
        except UserError as error:
            return Screened(variant=variant, why_not=str(error))
        cluster, limit = self._cluster, int(self._cluster.memory_gib * _GIB)
        memory = node_memory(
            cell.footprint,
            cell.cost,
            data=cell.workload.computed_bytes(),
            batches_ahead=cell.workload.batches_ahead,
            on_gpu=on_gpus(cluster),
            backend=cluster.collectives,
        )
        fit = fits(memory, limit)
        found = Screened(
            variant=variant,
            memory_bytes=memory.total,
            fits=fit,
            round_steps=cell.method.round_steps,
            cell=cell,
            why_not=""
            if fit is not False
            else f"needs {memory.total / _GIB:.3g} GiB of a node that has {cluster.memory_gib:.3g}",
        )
        return found if found.why_not else self._timed(found, cell)

    def planned(self, variant: Variant, nodes: int) -> Trace:
        """The trace of `variant` on `nodes` nodes, from sizes.

        Raises:
            UserError: if the method cannot train there, or its rounds do not follow from sizes.
        """
        return self._trace(self._cell(variant, nodes))

    def _trace(self, cell: DealtCell) -> Trace:
        recorded = self._recorded
        if not recorded.operations:
            raise CannotDeal("the operations of the recorded step are unknown")
        return cell.trace(recorded.meta, recorded.step_s * cell.operations / recorded.operations, _TRACED_STEPS)

    def _cell(self, variant: Variant, nodes: int) -> DealtCell:
        base = self._base
        return DealtCell.of(
            base.workload,
            base.workload_options,
            variant.method,
            variant.options,
            plugins=base.plugins,
            batch_size=base.batch_size,
            nodes=nodes,
            data=base.data,
        )

    def _timed(self, found: Screened, cell: DealtCell) -> Screened:
        try:
            trace = self._trace(cell)
            there = cluster_time(trace, self._cluster, _two_ends(trace))
            here = cluster_time(trace, self._here, _two_ends(trace))
        except UserError:
            return found
        return dataclasses.replace(
            found,
            step_s=_per_step(there, trace),
            computing=there.compute,
            here_s=_per_step(here, trace),
            trace=trace,
        )


def _two_ends(trace: Trace) -> list[int]:
    steps = -(-_TIMED_STEPS // trace.steps) * trace.steps
    return [steps, 2 * steps]


def _per_step(time: ClusterTime, trace: Trace) -> float:
    half, whole = time.seconds
    return (whole - half) / _two_ends(trace)[0]


def _choices(options: type, name: str) -> list[str]:
    """The values other than its default of option `name`, a text with few choices."""
    kind = typing.get_type_hints(options)[name]
    default = next(option.default for option in dataclasses.fields(options) if option.name == name)
    return [value for value in typing.get_args(kind) if isinstance(value, str) and value != default]


def mark_slow(found: Sequence[Screened]) -> list[Screened]:
    """`found` with a reason for each variant whose speed cannot make it first.

    Of the methods that make the same optimizer step, only the fastest can be first. No other method learns more in
    a local step than they do, so one that takes as long as the fastest of them cannot be first either. Baselines
    are trained in any case.
    """
    exact = [one for one in found if _is_exact(one) and one.step_s is not None and not one.why_not]
    fastest = min(exact, key=lambda one: one.step_s or 0.0, default=None)
    marked = [one if fastest is None else _marked(one, fastest) for one in found]
    return [_marked_twin(one, marked[:place]) for place, one in enumerate(marked)]


def _marked_twin(one: Screened, earlier: Sequence[Screened]) -> Screened:
    """`one` with a reason if an earlier variant differs in the value of a text alone, and is as fast."""
    texts = {name for name, value in one.variant.options.items() if isinstance(value, str)}
    for other in earlier:
        alike = other.variant.method == one.variant.method and {*other.variant.options} == {*one.variant.options}
        if not alike or not texts or one.why_not or other.why_not or one.step_s is None or other.step_s is None:
            continue
        rest = [name for name in one.variant.options if name not in texts]
        if all(one.variant.options[name] == other.variant.options[name] for name in rest) and math.isclose(
            one.step_s, other.step_s, rel_tol=_SAME_BYTES
        ):
            return dataclasses.replace(one, why_not=f"as fast as {other.variant.label}")
    return one


def _marked(one: Screened, fastest: Screened) -> Screened:
    if one.why_not or one.variant.baseline or one is fastest or one.step_s is None:
        return one
    assert fastest.step_s is not None
    if _is_exact(one):
        return dataclasses.replace(one, why_not=f"learns as {fastest.variant.label} does, which is faster here")
    if one.step_s >= _SAME_SPEED * fastest.step_s:
        return dataclasses.replace(one, why_not=f"a step takes as long as one of {fastest.variant.label}")
    return one


def _is_exact(one: Screened) -> bool:
    options = one.variant.options
    return one.variant.method in _EXACT and not {"accumulate", "compress"} & set(options)


def by_promise(found: Iterable[Screened]) -> list[Screened]:
    """The variants to train, the most promising first: baselines, one of each method by speed, then the others.

    Among equally fast ones, the one with shorter rounds stands first: it is closer to `ddp`. A variant of unknown
    speed stands last.
    """
    open_ones = [one for one in found if not one.why_not]
    baselines = [one for one in open_ones if one.variant.baseline]
    rest = sorted((one for one in open_ones if not one.variant.baseline), key=_promise)
    seen: set[str] = set()
    first: list[Screened] = []
    second: list[Screened] = []
    for one in rest:
        (second if one.variant.method in seen else first).append(one)
        seen.add(one.variant.method)
    return [*baselines, *first, *second]


def _promise(one: Screened) -> tuple[float, int, str]:
    if one.step_s is None:
        return (math.inf, one.round_steps, one.variant.label)
    return (round(math.log(one.step_s) / math.log(1.1)), one.round_steps, one.variant.label)
