"""Streaming IST in one process, by masking the full model: slow, short, and easy to believe.

There is one full model. In a local step each node trains a copy in which every entry that touches a unit of another
node, or a unit in flight, counts as zero (see reference_ist.py), and what it trained is written back at once.
Tensors that no unit indexes are each node's own until the round ends.
"""

import copy

import torch
from reference_ist import Masked, factors_of

from istbench.methods.base import materialise
from istbench.methods.subnets.streaming import Timetable, turns_of
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.neuron_groups.groups import expand_units
from istbench.workloads.neuron_groups.layout import layout_of
from istbench.workloads.neuron_groups.partition import partition_units


class StreamingReference:
    """`nodes` nodes' training; `model` is the full one."""

    def __init__(self, workload, options, *, nodes, seed):
        self.workload, self.options, self.nodes = workload, options, range(nodes)
        with torch.device("meta"):
            model = workload.build_model()
        self.groups = workload.neuron_groups(model)
        layout = layout_of(model, self.groups)
        self.shared = layout.replicated
        self.model = materialise(model, workload, seed, torch.device("cpu"))
        waves = options.local_steps // options.flight_steps
        self.waves = Timetable(layout.groups, nodes, seed, waves, turns_of(layout))
        self.partition = partition_units(self.groups, nodes, seed=seed, round_index=0)
        self.flying, self.flown = {}, 0
        self.copies = [copy.deepcopy(self.model) for _ in self.nodes]
        self.optimizers = [options.build(each.parameters()) for each in self.copies]
        self.state = {}  # by parameter name and slot
        self.shards = [
            ShardedBatches(workload.train_size, workload.batch_size, rank=node, world_size=nodes, seed=seed)
            for node in self.nodes
        ]

    def train(self, first, last):
        """Local steps `first` to `last` (exclusive), then the mean of what is each node's own."""
        for step in range(first, last):
            masks = [self._mask(node) for node in self.nodes]
            for node in self.nodes:
                self._take(node)
                self._step(node, masks[node], step)
            self._give(masks)
            self._move(*divmod(step, self.options.local_steps))
        with torch.no_grad():
            for name, own in self._own():
                self.model.get_parameter(name).copy_(torch.stack(own).mean(0))

    def _own(self):
        """By name, the nodes' own parameters of what no unit indexes."""
        names = [name for name, _ in self.model.named_parameters() if name in self.shared]
        return [(name, [each.get_parameter(name) for each in self.copies]) for name in names]

    def _mask(self, node):
        masks = {name: torch.ones_like(parameter) for name, parameter in self.model.named_parameters()}
        for group in self.groups:
            others = self.partition[group.name].owner != node
            others[self.flying.get(group.name, torch.empty(0, dtype=torch.int64))] = True
            for slot in group.slots:
                if slot.tensor in masks:
                    index = expand_units(others.nonzero().flatten(), slot.block)
                    masks[slot.tensor].index_fill_(slot.dim, index, 0.0)
        return masks

    @torch.no_grad()
    def _take(self, node):
        for name, parameter in self.copies[node].named_parameters():
            if name not in self.shared:
                parameter.copy_(self.model.get_parameter(name))
                for slot, value in self.state.get(name, {}).items():
                    self.optimizers[node].state[parameter][slot].copy_(value)

    def _step(self, node, masks, step):
        optimizer, shard = self.optimizers[node], self.shards[node]
        optimizer.zero_grad()
        batch = self.workload.train_batch(shard.indices(step), shard.generator(step))
        factors = factors_of(self.groups, self.partition, node, self.options)
        self.workload.loss(Masked(self.copies[node], masks, factors), batch).backward()
        optimizer.step()

    @torch.no_grad()
    def _give(self, masks):
        for name, full in self.model.named_parameters():
            if name in self.shared:
                continue
            for node in self.nodes:
                parameter, trained = self.copies[node].get_parameter(name), masks[node][name] > 0
                full.copy_(torch.where(trained, parameter, full))
                for slot, value in self.optimizers[node].state[parameter].items():
                    if slot != "step" and value is not None:
                        slots = self.state.setdefault(name, {})
                        before = slots.setdefault(slot, torch.zeros_like(full))
                        slots[slot] = torch.where(trained, value, before)

    def _move(self, round_index, step):
        """After a local step of a round: units land, units leave, the round ends."""
        self.flown += 1
        if self.flying and self.flown == self.options.flight_steps:
            self._land()
        wave, early = divmod(step + 1, self.options.flight_steps)
        if not early and wave <= self.waves.waves:
            left = self.waves.wave(self.partition, round_index, wave - 1)
            self.partition, self.flying, self.flown = left.new, left.moving, 0
        if step + 1 == self.options.local_steps:
            self._average()

    def _land(self):
        for group in self.groups if self.options.optimizer_state == "reset" else ():
            for slot in group.slots if group.name in self.flying else ():
                for value in self.state.get(slot.tensor, {}).values():
                    value.index_fill_(slot.dim, expand_units(self.flying[group.name], slot.block), 0.0)
        self.flying = {}

    @torch.no_grad()
    def _average(self):
        for _, own in self._own():
            _equalise(own)
            states = [optimizer.state[mine] for optimizer, mine in zip(self.optimizers, own, strict=True)]
            for slot in states[0].keys() - {"step"}:
                values = [state[slot] for state in states]
                if values[0] is not None:
                    _equalise(values)
                    if self.options.optimizer_state == "reset":
                        for value in values:
                            value.zero_()


def _equalise(tensors):
    mean = torch.stack(list(tensors)).mean(0)
    for tensor in tensors:
        tensor.copy_(mean)
