"""The memory and the messages of a round of `ist`, before anything runs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from istbench.cluster.trace_builder import not_empty
from istbench.methods.flat import by_dtype, is_frozen
from istbench.methods.footprint import Footprint, PlannedNode, tensor_bytes, trained, whole_model
from istbench.methods.shared_tensors import averaged_in_place
from istbench.methods.subnets.exchange import expected_moves, owned_behind
from istbench.methods.wide_layers import wide_weights
from istbench.workloads.neuron_groups.groups import named_tensors
from istbench.workloads.neuron_groups.layout import Layout, build_subnet, shared_tensors
from istbench.workloads.neuron_groups.partition import part_sizes, part_units


def subnets(
    model: nn.Module, layout: Layout, world_size: int, coverage: int, shares: Sequence[float] = ()
) -> tuple[nn.Module, ...]:
    """The subnets of nodes with these `shares` of the units, by rank, on the meta device.

    Without shares, that of node 0 alone, which has a largest part of every group in every round. Nodes with parts
    of equal sizes have the same object.
    """
    of_nodes = part_units(layout.groups, world_size, coverage=coverage, shares=shares)[: len(shares) or 1]
    built: dict[tuple[int, ...], nn.Module] = {}
    for units in of_nodes:
        if (own := tuple(units.values())) not in built:
            built[own] = build_subnet(model, layout.groups, units, torch.device("meta"))
    return tuple(built[tuple(units.values())] for units in of_nodes)


def travelling_bytes(options: Any, tensors: dict[str, Tensor], world_size: int) -> dict[str, int]:
    """By tensor name: bytes of one value and of the optimizer state that travels with it."""
    slots = travelling_slots(options, world_size)
    return {name: tensor.element_size() * (1 + slots * tensor.requires_grad) for name, tensor in tensors.items()}


def travelling_slots(options: Any, world_size: int) -> int:
    """The number of tensors of the optimizer that travel with a parameter."""
    carried = options.optimizer_state == "carry" and options.local_steps and world_size > 1
    return len(options.slots) if carried else 0


def shared_bytes(options: Any, layout: Layout, subnet: nn.Module, world_size: int) -> list[int]:
    """Bytes of each all-reduce of the tensors that every node trains, and of the numbers of updates."""
    if world_size == 1:
        return []
    in_place, slots = averaged_in_place(options, layout), travelling_slots(options, world_size)
    tensors = named_tensors(subnet)
    travelling = [tensors[name] for name in layout.names().difference(layout.replicated if in_place else ())]
    values = sum(len(options.rule.counts(own.dim())) for own in travelling if slots and own.requires_grad)
    whole = []
    if in_place:
        moving = (tensor for tensor in shared_tensors(subnet, layout.groups).values() if not is_frozen(tensor))
        whole = [tensor_bytes(alike) for alike in by_dtype(moving)]
    else:
        replicated = (tensors[name] for name in layout.replicated if not is_frozen(tensors[name]))
        values += sum(tensor.numel() * (1 + slots * tensor.requires_grad) for tensor in replicated)
    return [*whole, *([values * torch.float64.itemsize] if values else [])]


def subnet_footprint(
    model: nn.Module,
    layout: Layout,
    options: Any,
    world_size: int,
    batch_size: int,
    shares: Sequence[float] = (),
    *,
    plain: bool,
) -> Footprint:
    """The footprint of `ist` on `model` (meta device): of a largest subnet, and of the whole model in a warm-up.

    plain: whether the backward pass updates wide layers (`updates_wide_layers`).
    """
    parts = subnets(model, layout, world_size, options.coverage, shares)
    subnet = max(parts, key=lambda part: tensor_bytes(trained(part)))
    planned = replace(_footprint_of(subnet, layout, options, world_size, batch_size), updates_wide_layers=plain)
    if shares:
        planned = replace(planned, parts=parts, notes=("a round sends the bytes of equal parts",))
    if not options.warmup_rounds or world_size == 1:
        return planned
    assert planned.rounds is not None
    whole = replace(whole_model(model, options, planned.rounds, batch_size), updates_wide_layers=plain)
    # At the first deal the share is built in the memory of the gradients of the whole model, and in more.
    gradients = tensor_bytes(trained(model)) - (tensor_bytes(wide_weights(model)) if plain else 0)
    more = _built_bytes(subnet, layout, options, world_size) - gradients
    rounds = options.warmup_rounds
    note = f"in the first {rounds} rounds the nodes train and average the whole model; a later round is planned"
    return replace(
        planned,
        before=replace(whole, round_buffers=max(0, more)),
        unlike_steps=rounds * max(1, options.local_steps),
        notes=(*planned.notes, note),
    )


def _built_bytes(subnet: nn.Module, layout: Layout, options: Any, world_size: int) -> int:
    """Bytes of a new share beside the whole model, whose optimizer state of shared tensors it takes over."""
    tensors = named_tensors(subnet)
    planes = travelling_bytes(options, tensors, world_size)
    shards = _home_shard_sizes(layout, world_size, options.coverage)
    cut = {tensor.name for tensor in layout.cut}
    dealt = sum(planes[name] * (tensors[name].numel() + shards.get(name, 0)) for name in cut)
    return dealt + tensor_bytes(tensor for name, tensor in tensors.items() if name not in cut)


def _footprint_of(subnet: nn.Module, layout: Layout, options: Any, world_size: int, batch_size: int) -> Footprint:
    """`subnet` with its gradients and optimizer state, and the home shards of tensors cut along two axes."""
    shared = shared_bytes(options, layout, subnet, world_size)
    tensors, slots = named_tensors(subnet), travelling_slots(options, world_size)
    gathered = sent = 0.0
    reduced, returned = ([0.0] * (world_size - 1) for _ in range(2))  # by the distance of an owner behind the lead
    for cut in layout.cut:
        size = tensors[cut.name].element_size()
        behind = owned_behind(len(cut.axes), world_size, options.coverage)
        for count, state in ((1, False), (slots * tensors[cut.name].requires_grad, True)):
            moved = expected_moves(cut, world_size, options.coverage, options.moving, state=state)
            gathered += count * size * moved.gathered
            sent += count * size * moved.sent
            for place, share in enumerate(behind):
                reduced[place] += count * size * moved.reduced * share
                returned[place] += count * size * moved.returned * share
    spread = (sent - sum(returned)) / max(1, world_size - 1)
    shards = _home_shard_sizes(layout, world_size, options.coverage)
    planes = travelling_bytes(options, tensors, world_size)
    sizes = {name: tensor.element_size() for name, tensor in tensors.items()}

    def rounds(node: PlannedNode) -> Iterator[None]:
        while True:
            node.steps(max(1, options.local_steps))
            post_exchange(node, [*reversed(reduced)])  # the lead is before its owners on the ring
            post_exchange(node, [size + spread for size in returned])
            for size in shared:
                node.all_reduce(size)
            yield

    return Footprint(
        model=subnet,
        rounds=rounds,
        optimizer_state=(len(options.slots) if options.local_steps else 0) * tensor_bytes(trained(subnet))
        + sum((planes[name] - sizes[name]) * count for name, count in shards.items()),
        stepped=tuple(trained(subnet)),
        build=options.build,
        samples=batch_size,
        parameters_beside=sum(sizes[name] * count for name, count in shards.items()),
        round_buffers=round(max(gathered + sent, 2 * sum(reduced))) + shared_buffers(options, layout, shared),
    )


def shared_buffers(options: Any, layout: Layout, shared: list[int]) -> int:
    """Bytes of the buffers of all-reduces of `shared` bytes: copies in float64, or none."""
    return 0 if averaged_in_place(options, layout) else 2 * sum(shared)


def post_exchange(node: PlannedNode, sizes: Sequence[float]) -> None:
    """An exchange: in turn d, receive from the node d places before on the ring, and send to the one d after."""
    turns = []
    for turn, size in enumerate(map(round, sizes), 1):
        source, to = (node.rank - turn) % node.world_size, (node.rank + turn) % node.world_size
        buffer = torch.empty(size, dtype=torch.uint8, device="meta")
        turns.append((not_empty({to: buffer}), not_empty({source: buffer})))
    node.exchange_among_all(turns)


def _home_shard_sizes(layout: Layout, world_size: int, coverage: int) -> dict[str, int]:
    """Values of node 0's home shard, the largest, of each tensor with entries that may be in no subnet."""
    if 2 * coverage > world_size:
        return {}
    sizes = {group.name: group.size for group in layout.groups}
    return {
        cut.name: cut.shape.numel() // (units := sizes[cut.axes[0].group]) * part_sizes(units, world_size)[0]
        for cut in layout.cut
        if cut.needs_home
    }
