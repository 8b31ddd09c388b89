"""The rounds of a method from sizes alone, without torch, for an answer in a second.

A test compares every trace with that of the method's own plan (istbench/plan/script_trace.py). A method or an
option that is missing here has that plan only.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from istbench.base.errors import UserError
from istbench.base.options.numbers import LARGEST_CHUNK
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.methods.planned_node import (
    PlannedNode,
    PlannedTransfers,
    ShardedStep,
    balanced_runs,
    planned_buckets,
    rounds_after,
    streaming_rounds,
)
from istbench.methods.planned_node import message_bytes as mean_bytes
from istbench.methods.served.messages import cut, most_slices, served_rounds
from istbench.plan.script_time import LEAST_STEPS, ChosenMethod, trace_of_record
from istbench.plan.traced_node import MOST_EVENTS, PlannedRounds

_EVENTS_OF_SLICE = 8  # a node posts and awaits pushes, updates and replies
_MIB, _HALF_BYTES = 2**20, 2
_EMPTY_BYTES = 4  # a node without parameters broadcasts one number
_WORDS = {"compress": ("none", "bf16", "fp16"), "send": ("float32", "bf16", "int8")}


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Values of each trained parameter in the order of the model, bytes of a value, and the most events."""

    values: Sequence[int]
    itemsize: int
    nodes: int
    most: int

    @property
    def bytes(self) -> int:
        return sum(self.values) * self.itemsize


@dataclass(frozen=True, kw_only=True)
class SizeMethod:
    """A method that follows from sizes.

    Attributes:
        defaults: of its options here. rounds: from its options. every: the option with the local steps of a round.
    """

    defaults: Mapping[str, Any]
    plan: Callable[[_Sizes, Mapping[str, Any]], PlannedRounds]
    every: str = ""


def _buckets(node: PlannedNode, sizes: _Sizes, options: Mapping[str, Any]) -> Iterator[None]:
    """Local steps up to the mean gradient, in torch's buckets; the first one has 1 MiB."""
    itemsize = _HALF_BYTES if options["compress"] in ("bf16", "fp16") else sizes.itemsize
    while True:
        node.steps(options["accumulate"] - 1, updates=False)
        for _ in node.forward():
            pass
        capacities = itertools.chain([_MIB], itertools.repeat(25.0 * _MIB))
        buckets = planned_buckets(node, [values * sizes.itemsize for values in sizes.values], capacities)
        node.wait([node.post("all_reduce", sum(sizes.values[own] for own in one) * itemsize) for one in buckets])
        yield


def _ddp(sizes: _Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    def rounds(node: PlannedNode) -> Iterator[None]:
        for _ in _buckets(node, sizes, options):
            node.update()
            yield

    return PlannedRounds(rounds=rounds, steps=options["accumulate"])


def _zero(sizes: _Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    shares = [0] * sizes.nodes
    for values in sorted(sizes.values, reverse=True):
        shares[shares.index(min(shares))] += values

    def rounds(node: PlannedNode) -> Iterator[None]:
        for _ in _buckets(node, sizes, options):
            node.update(shares[node.rank] / sum(shares))
            parts = [own * sizes.itemsize or _EMPTY_BYTES for own in shares]
            node.wait([node.post("broadcast", size, [root]) for root, size in enumerate(parts)])
            yield

    return PlannedRounds(rounds=rounds, steps=options["accumulate"])


def _local_sgd(sizes: _Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    return PlannedRounds(rounds=rounds_after(options["local_steps"], [sizes.bytes]), steps=options["local_steps"])


def _sparseloco(sizes: _Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    whole, rest = divmod(sum(sizes.values), options["chunk"])
    # A value and its place in the chunk, an int16 or a byte.
    message = (whole * options["top"] + min(options["top"], rest)) * (
        sizes.itemsize + (1 if options["chunk"] <= 2**8 else 2)
    )
    return PlannedRounds(rounds=rounds_after(options["local_steps"], (), [message]), steps=options["local_steps"])


def _streaming(sizes: _Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    fragments, delay, send = options["fragments"], options["delay"], options["send"]
    gap = options["local_steps"] // fragments
    if options["local_steps"] % fragments or delay > gap:
        raise UserError(
            f"streaming_diloco: local_steps={options['local_steps']} must be a multiple of fragments={fragments}, "
            f"and delay={delay} at most {gap}"
        )
    lengths = [sum(sizes.values[run.start : run.stop]) for run in balanced_runs(sizes.values, fragments)]
    rounds = streaming_rounds(lengths, send, delay=delay, gap=gap)
    last = mean_bytes(lengths[-1], send) // 2 if delay else 0
    return PlannedRounds(rounds=rounds, steps=options["local_steps"], last_bytes=last)


def _served(sizes: _Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    slice_params = options.get("slice_params", 0)
    _check_slices(sizes, slice_params)
    slices = cut(sizes.values, slice_params, sizes.nodes)
    priority = bool(options.get("priority", False))
    window = int(options["window"]) if priority else None
    return PlannedRounds(rounds=served_rounds(slices, sizes.itemsize, priority), window=window)


def _check_slices(sizes: _Sizes, slice_params: int) -> None:
    """Refuse too many slices before `cut` lists them."""
    values, nodes = sum(sizes.values), sizes.nodes
    count, events = most_slices(sizes.values, slice_params, nodes), _EVENTS_OF_SLICE * nodes * LEAST_STEPS
    if count * events <= sizes.most:
        return
    if count * events <= MOST_EVENTS:
        raise UserError(f"its {count:,} slices on {nodes} nodes take more than a second to replay; name it")
    # Each layer may have one slice beyond its share. Half of the events replay in less than a minute.
    spare = MOST_EVENTS // 2 // events - len(sizes.values)
    larger = slice_params and spare > 0
    raise UserError(
        f"{values:,} parameters in {count:,} slices{f' of slice_params={slice_params}' if slice_params else ''} on "
        f"{nodes} nodes have too many messages to replay in minutes; name "
        + (f"'p3 slice_params={-(-values // spare)}'" if larger else "fewer nodes or larger layers")
    )


def _fsdp(sizes: _Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    if min(sizes.values) < options["group_params"]:
        raise UserError(f"fsdp groups layers of fewer than {options['group_params']:,} parameters")
    # Padded to equal shards.
    padded = [sizes.nodes * -(-values // sizes.nodes) * sizes.itemsize for values in sizes.values]

    def rounds(node: PlannedNode) -> Iterator[None]:
        leaving: list[int] = []

        def gather(layer: int) -> Callable[[], object] | None:
            if layer == len(padded) or sizes.nodes == 1:
                return None
            return PlannedTransfers(node, [node.post("all_gather", padded[layer] // sizes.nodes)]).wait

        def average(layer: int) -> None:
            node.wait(leaving)
            leaving[:] = [node.post("reduce_scatter", padded[layer])] if sizes.nodes > 1 else []

        while True:
            step = ShardedStep(node, range(len(padded)), len(padded), gather, average)
            step.forward()
            step.backward()
            node.wait(leaving)
            leaving.clear()
            node.update(1 / sizes.nodes)
            yield

    return PlannedRounds(rounds=rounds)


_BUCKETED = {"accumulate": 1, "compress": "none"}

SIZE_METHODS: Mapping[str, SizeMethod] = {
    "ddp": SizeMethod(defaults=_BUCKETED, plan=_ddp, every="accumulate"),
    "local_sgd": SizeMethod(defaults={"local_steps": 20}, plan=_local_sgd, every="local_steps"),
    "diloco": SizeMethod(defaults={"local_steps": 20}, plan=_local_sgd, every="local_steps"),
    "streaming_diloco": SizeMethod(
        defaults={"local_steps": 20, "fragments": 2, "delay": 2, "send": "float32"},
        plan=_streaming,
        every="local_steps",
    ),
    "sparseloco": SizeMethod(
        defaults={"local_steps": 15, "chunk": 4096, "top": 32}, plan=_sparseloco, every="local_steps"
    ),
    "zero": SizeMethod(defaults=_BUCKETED, plan=_zero, every="accumulate"),
    "fsdp": SizeMethod(defaults={"group_params": 100_000}, plan=_fsdp),
    "parameter_server": SizeMethod(defaults={}, plan=_served),
    "p3": SizeMethod(defaults={"slice_params": 50_000, "priority": True, "window": 2}, plan=_served),
}
"""The methods that follow from sizes, by name."""


def sized(method: ChosenMethod) -> ChosenMethod | None:
    """`method` with decoded options; None if `size_trace` lacks one of them, or the method refuses them."""
    known = SIZE_METHODS.get(method.name)
    defaults = known.defaults if known else {}
    options = {name: _decoded(name, str(value), defaults.get(name)) for name, value in method.options.items()}
    if known is None or None in options.values():
        return None
    values = {**defaults, **options}
    if values.get("top", 0) > values.get("chunk", 0) or values.get("chunk", 0) > LARGEST_CHUNK:
        return None
    if "window" in options and not values["priority"]:
        return None
    return ChosenMethod(name=method.name, options=options)


def _decoded(name: str, text: str, default: Any) -> Any:
    """`text` as a word, a truth or a number above 0, as `default` of option `name` is one; None if it is none."""
    if isinstance(default, str):
        return text if text in _WORDS[name] else None
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower())
    return int(text) if isinstance(default, int) and text.isdecimal() and 0 < int(text) < _MIB * _MIB else None


def size_trace(record: ScriptRecord, method: ChosenMethod, nodes: int, most: int = MOST_EVENTS) -> Trace:
    """The trace of `record` by `method`, of `sized`, on `nodes` nodes, as `script_trace` has it.

    most: events at most, about.

    Raises:
        UserError: for too many messages, or layers whose groups need more than their sizes.
    """
    known = SIZE_METHODS[method.name]
    trained = sorted((own for own in record.parameters if own.trained), key=lambda own: own.place)
    itemsize = max(own.bytes // max(1, own.values) for own in trained)
    sizes = _Sizes(values=[own.values for own in trained], itemsize=itemsize, nodes=nodes, most=most)
    planned = known.plan(sizes, {**known.defaults, **method.options})
    return trace_of_record(record, method.name, planned, nodes)
