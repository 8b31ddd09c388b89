"""Independent Subnet Training in one process, by masking the full model: slow, short, and easy to believe.

A node's subnet is the full model with every entry that belongs to another node's unit set to zero. Such a unit
then puts out zero (its row, bias and norm are zero) and counts for nothing (its column is zero), and as BatchNorm
looks at one channel at a time, the node's own channels are normalised as in a network that has no others. Larger
weights scale a sum over the units that no normalisation follows.
"""

import copy

import torch
from torch import nn
from torch.func import functional_call

from istbench.methods.base import materialise
from istbench.methods.dealt_groups import selected_groups
from istbench.methods.ist import IndependentSubnetTraining
from istbench.methods.shared_tensors import averaged_in_place
from istbench.workloads.base import Workload
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.neuron_groups.groups import dealt_to, expand_units, slot_length
from istbench.workloads.neuron_groups.layout import layout_of
from istbench.workloads.neuron_groups.partition import Deals


def reference_ist(
    workload: Workload,
    options: IndependentSubnetTraining.Options,
    *,
    nodes: int,
    local_steps: int,
    steps: int,
    seed: int,
) -> nn.Module:
    """The full model after `steps` local steps, the last round left where it is."""
    with torch.device("meta"):
        full = workload.build_model()
    groups = selected_groups(full, dealt_to(nodes, workload.neuron_groups(full)), options.deal)
    deals = Deals(groups, nodes, seed=seed, coverage=options.coverage, moving=options.moving)
    full = materialise(full, workload, seed, torch.device("cpu"))
    state = {}  # the optimizer's, by parameter name and slot
    layout = layout_of(full, groups)
    alone = set(layout.replicated) if nodes > 1 and averaged_in_place(options, layout) else set()
    own = [{} for _ in range(nodes)]  # the state of the tensors `alone`, which stays on its node
    for round_index, first in enumerate(range(0, steps, local_steps)):
        partition = deals.partition(round_index)
        masks = [_masks(full, groups, partition, node) for node in range(nodes)]
        last = min(first + local_steps, steps)
        trained = [
            _train(
                workload,
                options,
                full,
                state | own[node],
                masks[node],
                range(first, last),
                node,
                nodes,
                seed,
                factors_of(groups, partition, node, options),
            )
            for node in range(nodes)
        ]
        own = [{name: slots for name, slots in ended.items() if name in alone} for _, ended in trained]
        _write_back(full, state, trained, masks)
        if options.optimizer_state == "reset" and nodes > 1:
            state = {}
    return full


def _masks(full, groups, partition, node):
    """By parameter name, 1 where an entry is in `node`'s subnet and 0 elsewhere."""
    masks = {name: torch.ones_like(parameter) for name, parameter in full.named_parameters()}
    for group in groups:
        for slot in group.slots:
            if slot.tensor in masks:
                units = partition[group.name].units[node]
                mine = expand_units(units, slot.block, slot.segments, group.size)
                others = torch.ones(slot_length(group.size, slot), dtype=torch.bool).index_fill(0, mine, False)
                masks[slot.tensor].index_fill_(slot.dim, others.nonzero().flatten(), 0.0)
    return masks


def factors_of(groups, partition, node, options):
    """By parameter name, the inverse of `node`'s share of the units that it sums over."""
    if options.scale == "off":
        return {}
    return {name: group.size / len(partition[group.name].units[node]) for group in groups for name in group.sums}


class Masked(nn.Module):
    def __init__(self, model, masks, factors=None):
        super().__init__()
        self.model, self.masks, self.factors = model, masks, factors or {}

    def forward(self, *inputs):
        masked = {
            name: parameter * self.masks[name] * self.factors.get(name, 1.0)
            for name, parameter in self.model.named_parameters()
        }
        return functional_call(self.model, masked, inputs)


def _train(workload, options, full, state, masks, steps, node, nodes, seed, factors):
    """One node's round on a copy of the full model; returns its parameters and its optimizer's state by name."""
    model = copy.deepcopy(full)
    parameters = dict(model.named_parameters())
    optimizer = options.build(parameters.values())
    for name, slots in state.items():
        optimizer.state[parameters[name]] = copy.deepcopy(slots)
    shard = ShardedBatches(workload.train_size, workload.batch_size, rank=node, world_size=nodes, seed=seed)
    for step in steps:
        optimizer.zero_grad()
        batch = workload.train_batch(shard.indices(step), shard.generator(step))
        workload.loss(Masked(model, masks, factors), batch).backward()
        optimizer.step()
    return parameters, {name: dict(optimizer.state[parameter]) for name, parameter in parameters.items()}


@torch.no_grad()
def _write_back(full, state, trained, masks):
    for name, parameter in full.named_parameters():
        mine = [mask[name] for mask in masks]
        parameter.copy_(_merged(parameter, [parameters[name] for parameters, _ in trained], mine))
        slots, ended = state.setdefault(name, {}), [states[name] for _, states in trained]
        for slot in {slot for one in ended for slot in one}:
            values = [one.get(slot) for one in ended]
            there = next((value for value in values if value is not None), None)
            if there is None:  # plain SGD keeps nothing
                slots[slot] = None
                continue
            if there.shape != parameter.shape:  # the number of updates, which is not of an entry
                slots[slot] = sum(0.0 if value is None else value.double() for value in values) / len(values)
                continue
            # A node that had no gradient of it so far has what an optimizer starts from.
            values = [torch.zeros_like(parameter) if value is None else value for value in values]
            slots[slot] = _merged(slots.get(slot, torch.zeros_like(parameter)), values, mine)


def _merged(before, values, masks):
    """The mean over the nodes that trained an entry: the one that did, or all; `before` where none did."""
    count = sum(masks)
    total = sum(mask * value for mask, value in zip(masks, values, strict=True))
    return torch.where(count > 0, total / count.clamp(min=1), before)
