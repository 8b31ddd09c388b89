"""The repartition of IST on n nodes played out in one process: nothing lost, nothing sent twice."""

import pytest
import torch
from torch import nn

from istbench.methods.subnets.exchange import (
    Holdings,
    ReduceToLead,
    Repartition,
    count_values,
    gather_blocks,
    take_means,
    values_reduced,
    write_blocks,
)
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot, named_tensors
from istbench.workloads.neuron_groups.layout import layout_of, product_shape, select, subnet_index, write
from istbench.workloads.neuron_groups.partition import Deals, home_partition


def mlp():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    first = NeuronGroup("a", 7, (Slot("0.weight", 0), Slot("0.bias", 0), Slot("2.weight", 1)))
    second = NeuronGroup("b", 9, (Slot("2.weight", 0), Slot("2.bias", 0), Slot("4.weight", 1)))
    return model, [first, second]


def cnn():
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.Conv2d(6, 5, 2),
        nn.Flatten(),
        nn.Linear(20, 8),
        nn.Linear(8, 3),
    )
    norm = tuple(Slot(f"1.{name}", 0) for name in ("weight", "bias", "running_mean", "running_var"))
    return model, [
        NeuronGroup("conv1", 6, (Slot("0.weight", 0), Slot("0.bias", 0), *norm, Slot("2.weight", 1))),
        NeuronGroup("conv2", 5, (Slot("2.weight", 0), Slot("2.bias", 0), Slot("4.weight", 1, block=4))),
        NeuronGroup("fc", 8, (Slot("4.weight", 0), Slot("4.bias", 0), Slot("5.weight", 1))),
    ]


def attention():
    model = nn.Module()
    model.register_parameter("qkv", nn.Parameter(torch.randn(3 * 5 * 2, 7)))
    model.register_parameter("out", nn.Parameter(torch.randn(6, 2 * 5 * 2)))
    model.register_parameter("last", nn.Parameter(torch.randn(2, 6)))
    heads = NeuronGroup("heads", 5, (Slot("qkv", 0, block=2, segments=3), Slot("out", 1, block=2, segments=2)))
    inputs = NeuronGroup("inputs", 7, (Slot("qkv", 1),))
    return model, [heads, inputs, NeuronGroup("hidden", 6, (Slot("out", 0), Slot("last", 1)))]


def recurrent():
    model = nn.Module()
    model.register_parameter("state", nn.Parameter(torch.randn(6, 6)))
    model.register_parameter("readout", nn.Parameter(torch.randn(2, 6)))
    return model, [NeuronGroup("hidden", 6, (Slot("state", 0), Slot("state", 1), Slot("readout", 1)))]


MODELS = {"mlp": mlp, "cnn": cnn, "attention": attention, "recurrent": recurrent}


def holdings_of(node, layout, full, partition, home):
    """What `node` holds of the `full` tensors, two planes of each by name."""
    subnet, shards = {}, {}
    for cut in layout.cut:
        subnet[cut.name] = [select(p, cut.axes, subnet_index(cut, partition, node)) for p in full[cut.name]]
        if cut.needs_home:
            rows = subnet_index(cut, home, node)[:1]
            shards[cut.name] = [select(p, cut.axes[:1], rows) for p in full[cut.name]]
    return Holdings(subnet, shards)


def holders(cut, partition, home, world_size):
    """Per entry of a tensor, the node that holds its value."""
    full = torch.empty(cut.shape)
    for axes, parts in ((cut.axes[:1], home), (cut.axes, partition)):
        for node in range(world_size):
            index = subnet_index(cut, parts, node)[: len(axes)]
            write(full, axes, index, torch.full(product_shape(cut.shape, axes, index), float(node)))
    return full


class Cluster:
    """n nodes' holdings side by side in one process, two planes of every tensor."""

    def __init__(self, model, groups, world_size, coverage=1, moving=1.0):
        self.full = {name: [t.detach().clone(), t.detach() * 2] for name, t in named_tensors(model).items()}
        self.layout, self.world_size = layout_of(model, groups), world_size
        self.deals = Deals(groups, world_size, seed=3, coverage=coverage, moving=moving)
        self.home = home_partition(groups, world_size)
        self.round = 0
        self.partition = self.deals.partition(0)
        self.nodes = [self.whole(node) for node in range(world_size)]

    def whole(self, node):
        return holdings_of(node, self.layout, self.full, self.partition, self.home)

    def reduce_to_leads(self):
        """Leads take the means; returns the values sent."""
        reduction, nodes, like = ReduceToLead(self.layout, self.partition), range(self.world_size), torch.empty(0)
        wire = [[gather_blocks(self.nodes[a], reduction.outgoing(a, b), like) for b in nodes] for a in nodes]
        for b in nodes:
            led = reduction.led(b)
            arrived = {a: wire[a][b] for a in nodes if a != b}
            assert all(values_reduced(led, a) == len(values) for a, values in arrived.items())
            take_means(self.nodes[b], led, arrived)
        return sum(len(values) for row in wire for values in row)

    def repartition(self):
        """Moves to the next round; returns the values sent from node to node."""
        self.round += 1
        new = self.deals.partition(self.round)
        plan = Repartition(self.layout, self.partition, new, self.home)
        nodes, like = range(self.world_size), torch.empty(0)
        wire = [[gather_blocks(self.nodes[a], plan.outgoing(a, b), like) for b in nodes] for a in nodes]
        for b in nodes:
            for a in nodes:
                blocks = plan.incoming(b, a)
                assert count_values(self.nodes[b], blocks) == wire[a][b].numel()
                write_blocks(self.nodes[b], blocks, wire[a][b])
        self.partition = new
        return [[wire[a][b].numel() for b in nodes] for a in nodes]

    def holders(self):
        """By tensor, the node that holds the current value of each entry."""
        return {cut.name: holders(cut, self.partition, self.home, self.world_size) for cut in self.layout.cut}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_subnets_hold_the_full_models_values_after_every_round(name, world_size):
    torch.manual_seed(0)
    cluster = Cluster(*MODELS[name](), world_size)
    for _ in range(4):
        cluster.repartition()
        for node in range(world_size):
            wanted = cluster.whole(node).subnet
            for tensor, planes in cluster.nodes[node].subnet.items():
                for plane, want in zip(planes, wanted[tensor], strict=True):
                    assert torch.equal(plane, want)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_trained_values_arrive_wherever_they_are_needed(world_size):
    """Each node adds a round's number to its subnet; every subnet is then cut from the same sum."""
    torch.manual_seed(0)
    cluster = Cluster(*mlp(), world_size)
    for round_index in range(5):
        for node in range(world_size):
            for cut in cluster.layout.cut:
                index = subnet_index(cut, cluster.partition, node)
                for mine, full in zip(cluster.nodes[node].subnet[cut.name], cluster.full[cut.name], strict=True):
                    mine += round_index
                    write(full, cut.axes, index, select(full, cut.axes, index) + round_index)
        cluster.repartition()
        for node in range(world_size):
            for tensor, planes in cluster.whole(node).subnet.items():
                assert torch.equal(cluster.nodes[node].subnet[tensor][0], planes[0])


@pytest.mark.parametrize("name", MODELS)
def test_only_what_changes_its_holder_is_sent_and_that_once(name):
    torch.manual_seed(0)
    cluster = Cluster(*MODELS[name](), 3)
    for _ in range(3):
        before, sent, after = cluster.holders(), cluster.repartition(), cluster.holders()
        least = sum(int((before[name] != after[name]).sum()) for name in before) * 2  # two planes
        assert sum(sent[a][b] for a in range(3) for b in range(3) if a != b) == least


COVERED = [(3, 2, 1.0), (4, 2, 1.0), (4, 2, 0.3), (4, 3, 0.5), (5, 2, 1.0)]


def owners_of(cluster, partition, cut):
    """[nodes, *shape of the tensor]: whether each node owns each entry."""
    owners = torch.zeros(cluster.world_size, *cut.shape, dtype=torch.bool)
    for node in range(cluster.world_size):
        index = subnet_index(cut, partition, node)
        own = torch.ones(product_shape(cut.shape, cut.axes, index), dtype=torch.bool)
        write(owners[node], cut.axes, index, own)
    return owners


def held_by(cluster, node, cut, plane):
    """The plane of a tensor as a full tensor, NaN where `node` has none of it."""
    full = torch.full(cut.shape, torch.nan)
    write(full, cut.axes, subnet_index(cut, cluster.partition, node), cluster.nodes[node].subnet[cut.name][plane])
    return full


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("world_size", "coverage", "moving"), COVERED)
def test_next_owners_get_the_mean_of_the_owners_and_new_ones_a_state(name, world_size, coverage, moving):
    """Values differ by node, and the state of each node is its number, or -1 at home."""
    torch.manual_seed(0)
    cluster, nodes = Cluster(*MODELS[name](), world_size, coverage, moving), range(world_size)
    for holdings in cluster.nodes:
        for shards in holdings.home.values():
            shards[1].fill_(-1)
    for _ in range(3):
        for node, holdings in enumerate(cluster.nodes):
            for values, state in holdings.subnet.values():
                values += torch.rand_like(values)
                state.fill_(node)
        old = cluster.partition
        before = {cut.name: [held_by(cluster, node, cut, 0) for node in nodes] for cut in cluster.layout.cut}
        reduced, sent = cluster.reduce_to_leads(), cluster.repartition()
        for cut in cluster.layout.cut:
            owned, next_owned = (owners_of(cluster, partition, cut) for partition in (old, cluster.partition))
            trained = owned.any(0)
            means = torch.stack(before[cut.name]).nanmean(0)
            cluster.full[cut.name][0] = torch.where(trained, means, cluster.full[cut.name][0])
            for node in nodes:
                values, state = (held_by(cluster, node, cut, plane) for plane in (0, 1))
                assert torch.equal(~values.isnan(), next_owned[node])
                torch.testing.assert_close(values[next_owned[node]], cluster.full[cut.name][0][next_owned[node]])
                kept, new = next_owned[node] & owned[node], next_owned[node] & ~owned[node] & trained
                assert (state[kept] == node).all()
                a_trainer = owned.gather(0, state.nan_to_num(0).clamp(min=0).long()[None])[0]
                assert a_trainer[new].all()
        if all(not cut.needs_home for cut in cluster.layout.cut):
            assert reduced == (coverage - 1) * sum(cut.shape.numel() for cut in cluster.layout.cut)
        assert sum(map(sum, sent)) > 0


@pytest.mark.parametrize(
    ("world_size", "coverage", "most"), [(4, 1, 1.0), (4, 2, 1.13), (4, 3, 1.07), (8, 2, 1.06)]
)
def test_values_are_sent_hardly_more_often_than_they_must(world_size, coverage, most):
    """A mean of p values needs p - 1 transfers, and its p next owners as many again, or p if no owner stays."""
    model = nn.Sequential(nn.Linear(1, 240, bias=False), nn.Linear(240, 1))
    group = NeuronGroup("hidden", 240, (Slot("0.weight", 0),))
    layout, deals = layout_of(model, [group]), Deals([group], world_size, seed=0, coverage=coverage)
    nodes, sent, least = range(world_size), 0, 0
    for number in range(20):
        old, new = deals.partition(number), deals.partition(number + 1)
        plan, reduction = Repartition(layout, old, new, {}), ReduceToLead(layout, old)
        for node in nodes:
            for peer in (peer for peer in nodes if peer != node):
                blocks = [*reduction.outgoing(node, peer), *plan.outgoing(node, peer)]
                sent += sum(block.shape.numel() for block in blocks)
        places = [[(node - parts["hidden"].owner) % len(nodes) for node in nodes] for parts in (old, new)]
        stays = (torch.maximum(*map(torch.stack, places)) < coverage).any(0)
        least += 240 * 2 * (coverage - 1) + int((~stays).sum())
    assert least <= sent <= most * least
