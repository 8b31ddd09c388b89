"""The methods whose messages follow from the sizes of a model alone, for `istbench estimate`. Needs no torch.

A plan has the same rounds as the footprint of its method. Both call the same functions of sizes, mostly in
planned_node.py. A test compares their traces.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from istbench.base.entry_points import with_packages
from istbench.base.errors import UserError
from istbench.base.options.numbers import LARGEST_CHUNK
from istbench.methods.planned_node import (
    HALF_BYTES,
    LEAST_STEPS,
    MOST_EVENTS,
    BucketMessages,
    PlannedNode,
    PlannedRounds,
    PlannedTransfers,
    Rounds,
    ShardedStep,
    averaged_rounds,
    balanced_runs,
    bucket_averages,
    dealt_out,
    message_bytes,
    place_bytes,
    rounds_after,
    sent_entries,
    streaming_rounds,
)
from istbench.methods.served.messages import cut, most_slices, served_rounds
from istbench.methods.size_plan import SizePlan, Sizes

_EVENTS_OF_SLICE = 8  # a node posts and awaits pushes, updates and replies


def _averages(sizes: Sizes, options: Mapping[str, Any]) -> Rounds:
    itemsize = sizes.itemsize if options["compress"] == "none" else HALF_BYTES
    return partial(
        bucket_averages,
        sizes=[values * sizes.itemsize for values in sizes.values],
        messages=lambda numbers: BucketMessages(plain=sum(sizes.values[own] for own in numbers) * itemsize),
        accumulate=options["accumulate"],
    )


def _ddp(sizes: Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    return PlannedRounds(rounds=averaged_rounds(_averages(sizes, options)), steps=options["accumulate"])


def _zero(sizes: Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    dealt = dealt_out(sizes.values, sizes.nodes)
    shares = [sum(sizes.values[own] for own in share) * sizes.itemsize for share in dealt]
    rounds = averaged_rounds(_averages(sizes, options), shares)
    return PlannedRounds(rounds=rounds, steps=options["accumulate"])


def _local_sgd(sizes: Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    return PlannedRounds(rounds=rounds_after(options["local_steps"], [sizes.bytes]), steps=options["local_steps"])


def _sparseloco(sizes: Sizes, options: Mapping[str, Any]) -> PlannedRounds | None:
    if not options["top"] <= options["chunk"] <= LARGEST_CHUNK:
        return None
    entries = sent_entries(sum(sizes.values), options["chunk"], options["top"])
    sent = entries * (sizes.itemsize + place_bytes(options["chunk"]))
    return PlannedRounds(rounds=rounds_after(options["local_steps"], (), [sent]), steps=options["local_steps"])


def _streaming(sizes: Sizes, options: Mapping[str, Any]) -> PlannedRounds | None:
    fragments, delay, send = options["fragments"], options["delay"], options["send"]
    gap, short = divmod(options["local_steps"], fragments)
    if short or delay > gap or fragments > len(sizes.values):
        return None
    lengths = [sum(sizes.values[run.start : run.stop]) for run in balanced_runs(sizes.values, fragments)]
    return PlannedRounds(
        rounds=streaming_rounds(lengths, send, delay=delay, gap=gap),
        steps=options["local_steps"],
        last_bytes=message_bytes(lengths[-1], send) // 2,
    )


def _fsdp(sizes: Sizes, options: Mapping[str, Any]) -> PlannedRounds:
    if min(sizes.values) < options["group_params"]:
        raise UserError(f"fsdp groups layers of fewer than {options['group_params']:,} parameters")
    shards = [-(-values // sizes.nodes) * sizes.itemsize for values in sizes.values]  # padded to equal ones

    def rounds(node: PlannedNode) -> Iterator[None]:
        leaving: list[int] = []

        def gather(layer: int) -> Callable[[], object] | None:
            if layer == len(shards) or sizes.nodes == 1:
                return None
            return PlannedTransfers(node, [node.post("all_gather", shards[layer])]).wait

        def finish() -> None:
            node.wait(leaving)
            leaving.clear()

        def average(layer: int) -> None:
            finish()
            if sizes.nodes > 1:
                leaving.append(node.post("reduce_scatter", shards[layer] * sizes.nodes))

        step = ShardedStep(node, range(len(shards)), len(shards), gather, average)
        return step.rounds(finish, sizes.nodes, 1)

    return PlannedRounds(rounds=rounds)


def _served(sizes: Sizes, options: Mapping[str, Any]) -> PlannedRounds | None:
    slice_params, priority = options.get("slice_params", 0), options.get("priority", False)
    if not priority and options.get("window", _WINDOW) != _WINDOW:
        return None
    _check_slices(sizes, slice_params)
    slices = cut(sizes.values, slice_params, sizes.nodes)
    return PlannedRounds(
        rounds=served_rounds(slices, sizes.itemsize, priority), window=options["window"] if priority else None
    )


def _check_slices(sizes: Sizes, slice_params: int) -> None:
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


_WINDOW = 2
_BUCKETED = {"accumulate": 1, "compress": ("none", "bf16", "fp16")}
_OWN = (
    SizePlan(
        name="ddp", rounds=_ddp, options=_BUCKETED, every="accumulate", rows=("accumulate=4",),
        helps=("accumulate=4", "compress=bf16"),
        unknown="powersgd (it needs shapes: --layers, and --method 'ddp compress=powersgd')",
    ),
    SizePlan(
        name="local_sgd", rounds=_local_sgd, options={"local_steps": 20}, every="local_steps",
        helps=("local_steps=30",),
    ),
    SizePlan(name="diloco", rounds=_local_sgd, options={"local_steps": 20}, every="local_steps"),
    SizePlan(
        name="streaming_diloco", rounds=_streaming, every="local_steps",
        options={"local_steps": 20, "fragments": 2, "delay": 2, "send": ("float32", "bf16", "int8")},
    ),
    SizePlan(
        name="sparseloco", rounds=_sparseloco, every="local_steps",
        options={"local_steps": 15, "chunk": 4096, "top": 32},
    ),
    SizePlan(name="zero", rounds=_zero, options=_BUCKETED, every="accumulate", many_messages=True),
    SizePlan(name="fsdp", rounds=_fsdp, options={"group_params": 100_000}),
    SizePlan(name="parameter_server", rounds=_served, many_messages=True),
    SizePlan(
        name="p3", rounds=_served, many_messages=True,
        options={"slice_params": 50_000, "priority": True, "window": _WINDOW},
    ),
)  # fmt: skip
SIZE_PLANS: Mapping[str, SizePlan] = {plan.name: plan for plan in with_packages(_OWN, "size_plans", SizePlan)}
"""The plans by the name of their method, in the order in which people try the methods."""
