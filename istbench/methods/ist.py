"""Independent Subnet Training (Yuan et al., arXiv 1910.02120), exchanged without a server.

A round has three parts:

1. Deal: a seeded random partition deals the hidden units to the nodes.
2. Train: each node trains the subnet of its units for `local_steps` local steps, without communication.
3. Exchange: a new partition deals the units. Every weight moves directly from the node that trained it to the
   node that needs it next. A weight between units of two different nodes is in no subnet: it waits at home.

BatchNorm: a unit's affine parameters travel with the unit. Running statistics stay behind, because those of a
subnet do not fit the assembled model; every evaluation estimates them again (istbench/node/evaluate.py). Every node
trains the tensors that no hidden unit indexes (an output bias), and the nodes average them at the end of a round.

Optimizer state travels with its parameter (`optimizer_state=carry`), or starts at zero after every exchange
(`reset`). One node alone exchanges and resets nothing.

Four options lead from the paper's method towards `local_sgd`; they are this project's own:

- `deal` selects the layers whose units are dealt. Every node trains the others whole. The nodes average them as
  `local_sgd` does: in float32 and by one all-reduce, and the optimizer's state stays on its node.
- `coverage=p` gives each unit to p nodes, which average its values at the end of a round. With p = n nothing is
  dealt: that is `local_sgd`, bit for bit.
- `moving` is the share of the units that a new round deals again.
- `warmup_rounds` rounds of `local_sgd` come before the first deal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn

from istbench.config.numbers import Count, CountOrNone, Fraction, Natural
from istbench.config.tunable import LOCAL_STEPS
from istbench.errors import UserError
from istbench.fabric import Fabric
from istbench.footprint import Footprint, whole_model
from istbench.memory_order import memory_format
from istbench.methods.base import Method, counted
from istbench.methods.dealt_groups import check_groups, compare_groups, dealt_groups, whole_groups
from istbench.methods.flat import flatten_in_place
from istbench.methods.shares import Shares
from istbench.methods.subnet_footprint import largest_subnet, subnet_footprint
from istbench.optimizer import ClippedOptions, load_optimizer_state, optimizer_state, set_rate, started
from istbench.subnets.dealing import ALL
from istbench.subnets.exchange import (
    Holdings,
    Meeting,
    Repartition,
    count_values,
    gather_blocks,
    take_means,
    values_met,
    write_blocks,
)
from istbench.subnets.groups import NeuronGroup, named_tensors
from istbench.subnets.layout import (
    Rows,
    build_subnet,
    home_values,
    layout_of,
    part_of_subnet,
    subnet_values,
    undealt,
)
from istbench.subnets.partition import Deals, home_partition
from istbench.subnets.pieces import DimSlice
from istbench.workloads.base import Batch, Workload

_Name = Annotated[str, Meta(min_length=1, max_length=200)]


class IndependentSubnetTraining(Method):
    """Each node trains its own part of the hidden units; the parts change every round."""

    name = "ist"
    scheduled = True
    own_updates = "sends the optimizer's state with its units"
    cuts_units = True

    @dataclass(frozen=True, kw_only=True)
    class Options(ClippedOptions):
        """Options of `ist`."""

        local_steps: CountOrNone = field(
            default=20,
            metadata={
                "help": "local steps in a round; 0 exchanges without training, as a diagnosis",
                "tune": LOCAL_STEPS,
            },
        )
        optimizer_state: Literal["carry", "reset"] = field(
            default="carry",
            metadata={
                "help": "momenta and other optimizer state at an exchange: carry sends them with their unit, reset "
                "sends none and starts them at zero",
                "later": True,
            },
        )
        deal: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=1000)] = field(
            default=ALL,
            metadata={
                "help": "layers whose units are dealt to the nodes: all, late, linear, or names (istbench list "
                "groups WORKLOAD)",
                "later": True,
            },
        )
        coverage: Count = field(
            default=1,
            metadata={"help": "nodes that train each unit, and average it at the end of a round", "later": True},
        )
        moving: Fraction = field(
            default=1.0, metadata={"help": "share of the units that a new round deals again", "later": True}
        )
        warmup_rounds: Natural = field(
            default=0,
            metadata={"help": "first rounds, in which the nodes train and average the whole model", "later": True},
        )

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._full = model
        self._workload = workload
        self._fabric = fabric
        self._parameter_names = {name for name, _ in model.named_parameters()}
        self._steps = self._round = 0  # steps of the current round
        compare_groups(self._groups(model, workload, fabric.world_size), fabric)
        self._cut(self._initial_rows)

    def _cut(self, rows: Rows) -> None:
        """Make what this node trains in the current round, with the values of the full model from `rows`."""
        fabric, options = self._fabric, self.options
        groups = [] if self._warming else self._groups(self._full, self._workload, fabric.world_size)
        self._layout = layout_of(self._full, groups)
        self._deals = Deals(
            groups, fabric.world_size, seed=self.seed, coverage=options.coverage, moving=options.moving
        )
        self._home_partition = home_partition(groups, fabric.world_size)
        self._partition = self._deals.partition(self._round)
        self._subnet = build_subnet(self._full, groups, self._partition, fabric.rank, fabric.device)
        self._home = self._filled(rows)
        # One flat buffer behind all tensors that every node trains: their average is one all-reduce without copies.
        self._flat = flatten_in_place(self._undealt().values()) if self._like_local_sgd else []
        self._optimizer = options.build(self._subnet.parameters())
        fabric.recorder.steady = not self._warming
        fabric.recorder.unlike_steps = self._warmup_rounds * self.round_steps

    @property
    def _warming(self) -> bool:
        """Whether the first deal is still to come."""
        return self._round < self._warmup_rounds

    @property
    def _warmup_rounds(self) -> int:
        return int(self.options.warmup_rounds) if self._fabric.world_size > 1 else 0

    @property
    def _like_local_sgd(self) -> bool:
        """Whether the nodes average undealt tensors as `local_sgd` does; if not, in float64, with their state."""
        return self._warming or averages_like_local_sgd(self.options)

    def _groups(self, model: nn.Module, workload: Workload, world_size: int) -> list[NeuronGroup]:
        """The groups that are dealt after the warm-up: none if every node owns all units anyway."""
        if self.options.coverage == world_size > 1:
            return []
        return dealt_groups(model, workload, world_size, self.options)

    def _undealt(self) -> dict[str, Tensor]:
        return undealt(self._subnet, self._layout.groups)

    def step(self, batch: Batch) -> Tensor:
        loss = self._train(batch)
        self._steps += 1
        if self._steps == self.round_steps:
            self.close_round()
        return loss

    @torch.no_grad()
    def close_round(self) -> None:
        if self._fabric.world_size > 1:  # with one node, the subnet is the whole model in every round
            self._exchange()
        self._fabric.recorder.mark("round")
        self._steps = 0

    def _train(self, batch: Batch) -> Tensor:
        """One local step of the subnet; returns the loss."""
        if self.options.local_steps == 0:
            with torch.no_grad():
                loss = self._workload.loss(self._subnet, batch)
        else:
            self._optimizer.zero_grad()
            loss = self._workload.loss(self._subnet, batch)
            loss.backward()
            self.options.clip_gradients(self._subnet.parameters())
            set_rate(self._optimizer, self.learning_rate)
            self._optimizer.step()
        return loss.detach()

    def _exchange(self) -> None:
        """Average what several nodes trained, and move every entry to the nodes that train it in the next round."""
        if self._layout.cut:
            if self.options.coverage > 1:
                self._meet(self._holdings())
            old, self._partition = self._partition, self._deals.partition(self._round + 1)
            self._move(Repartition(self._layout, old, self._partition, self._home_partition), self._holdings())
        self._average_shared()
        self._end_state()
        self._next_round()

    def _meet(self, holdings: Holdings) -> None:
        """Replace the entries that this node leads by the means over their owners."""
        rank, like = self._fabric.rank, next(self._subnet.parameters())
        meeting = Meeting(self._layout, self._partition)
        peers = [peer for peer in range(self._fabric.world_size) if peer != rank]
        led = meeting.led(rank)
        outgoing = {peer: gather_blocks(holdings, meeting.outgoing(rank, peer), like) for peer in peers}
        arriving = {peer: like.new_empty(values_met(led, peer)) for peer in peers}
        self._fabric.exchange(outgoing, arriving, "averaging units")
        take_means(holdings, led, arriving)

    def _move(self, plan: Repartition, holdings: Holdings) -> None:
        """Move every entry by `plan`."""
        rank, peers = self._fabric.rank, range(self._fabric.world_size)
        like = next(self._subnet.parameters())
        # Copy all values out of their tensors first, also those that stay on this node; then write.
        outgoing = {peer: gather_blocks(holdings, plan.outgoing(rank, peer), like) for peer in peers}
        incoming = {peer: plan.incoming(rank, peer) for peer in peers}
        arrived = {peer: like.new_empty(count_values(holdings, incoming[peer])) for peer in peers if peer != rank}
        arrived[rank] = outgoing.pop(rank)
        arriving = {peer: buffer for peer, buffer in arrived.items() if peer != rank}
        self._fabric.exchange(outgoing, arriving, "exchanging subnets")
        for peer, buffer in arrived.items():
            write_blocks(holdings, incoming[peer], buffer)

    def _average_shared(self) -> None:
        """Replace the tensors that every node trains by their means over the nodes."""
        for flat in self._flat:
            self._fabric.all_reduce_mean(flat, "averaging shared tensors")
        if self._like_local_sgd:
            return
        planes = self._planes()
        tensors = [plane for name in self._layout.replicated for plane in planes[name]]
        for tensor, mean in zip(tensors, self._means(tensors, "averaging shared tensors"), strict=True):
            tensor.copy_(mean)

    def _means(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        """The mean over nodes of each of `tensors`, by one all-reduce."""
        if not tensors:
            return []
        # In float64 the mean of n equal values is that value, bit for bit.
        flat = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
        self._fabric.all_reduce_mean(flat, name)
        means = flat.split([tensor.numel() for tensor in tensors])
        return [mean.view(tensor.shape) for mean, tensor in zip(means, tensors, strict=True)]

    def _end_state(self) -> None:
        """With `optimizer_state=reset`, forget the optimizer's state of the tensors whose state would travel."""
        if self.options.optimizer_state == "reset":
            for name in self._travelling():
                self._optimizer.state.pop(named_tensors(self._subnet)[name], None)

    def _next_round(self) -> None:
        """Count a round; after the last one of the warm-up, cut this node's subnet out of the whole model."""
        self._round += 1
        if self._round == self._warmup_rounds:
            whole, state = named_tensors(self._subnet), self._optimizer.state
            self._cut(lambda name, rows: _rows(whole[name], rows))
            self._take_state({name: state[tensor] for name, tensor in whole.items() if tensor in state})

    def _take_state(self, whole: dict[str, dict[str, Any]]) -> None:
        """Take the optimizer's state of the subnet from that of the whole model, by tensor name."""
        cuts = {cut.name: cut for cut in self._layout.cut}
        reset = self._travelling() if self.options.optimizer_state == "reset" else set()
        for name, tensor in named_tensors(self._subnet).items():
            for slot, value in whole.get(name, {}).items() if name not in reset else ():
                if name in cuts and slot in self.options.slots and value is not None:
                    of_value = _rows_of(value)
                    value = subnet_values(cuts[name], self._partition, self._fabric.rank, of_value)
                    value = value.to(tensor).contiguous(memory_format=memory_format(tensor))
                self._optimizer.state[tensor][slot] = value

    def _holdings(self) -> Holdings:
        """The values on this node, with the optimizer state that travels with them."""
        subnet = self._planes()
        for name, shards in self._home.items():
            # No node has trained these entries so far: their state is zero, as in a new optimizer.
            missing = len(subnet[name]) - len(shards)
            shards.extend(torch.zeros_like(shards[0]) for _ in range(missing))
        return Holdings(subnet, self._home)

    def _planes(self) -> dict[str, list[Tensor]]:
        """By name of a travelling tensor: its values and its optimizer state, even before the optimizer has any."""
        carried = self.options.optimizer_state == "carry" and self.options.local_steps
        slots, travelling = self.options.slots if carried else (), self._travelling()
        return {
            name: [tensor.data, *(started(self._optimizer, tensor, slots) if tensor.requires_grad else ())]
            for name, tensor in named_tensors(self._subnet).items()
            if name in travelling
        }

    def _travelling(self) -> set[str]:
        """Names of the tensors whose optimizer state travels with their values."""
        shared = () if self._like_local_sgd else self._layout.replicated
        return {cut.name for cut in self._layout.cut}.union(shared)

    @torch.no_grad()
    def _filled(self, rows: Rows) -> dict[str, list[Tensor]]:
        """Fill the subnet with its values of the full model, from `rows`; returns the home shards with theirs."""
        rank, device = self._fabric.rank, self._fabric.device
        tensors = named_tensors(self._subnet)
        for cut in self._layout.cut:
            tensors[cut.name].copy_(subnet_values(cut, self._partition, rank, rows))
        for name in self._layout.replicated:
            tensors[name].copy_(rows(name, None))
        for name in tensors.keys() - self._layout.names():
            whole = self._workload.initial_buffer(self._full, name)
            tensors[name].copy_(part_of_subnet(name, whole, self._layout.groups, self._partition, rank))
        if 2 * self.options.coverage > self._fabric.world_size > 1:
            return {}  # any two units have a common owner: every entry is in a subnet
        shards = home_values(self._layout, self._home_partition, rank, rows)
        return {name: [shard.to(device, tensors[name].dtype)] for name, shard in shards.items()}

    def _initial_rows(self, name: str, rows: Tensor | None) -> Tensor:
        if name in self._parameter_names:
            return self._workload.initial_rows(self._full, name, rows, self.seed)
        buffer = self._workload.initial_buffer(self._full, name)
        return buffer if rows is None else buffer[rows]

    @property
    def round_steps(self) -> int:
        return max(1, self.options.local_steps)

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        if options.coverage > world_size:
            raise UserError(
                f"coverage={options.coverage} needs as many nodes, not {world_size}; set coverage={world_size}, "
                "or leave it out"
            )
        check_groups(cls.name, model, workload, world_size, options)

    def remark(self, model: nn.Module, workload: Workload, world_size: int) -> str:
        return whole_groups(model, workload, world_size, self.options)

    @torch.no_grad()
    def assemble(self) -> nn.Module | None:
        shares = self._shares()
        lead = self._fabric.rank == 0
        full = build_subnet(self._full, (), {}, 0, self._fabric.device) if lead else None
        whole = {} if full is None else named_tensors(full)
        for name, tensor in named_tensors(self._full).items():
            shares.bring(name, DimSlice(0, 0, len(tensor) if tensor.dim() else 1), whole.get(name))
        return full

    @torch.no_grad()
    def blocks(self) -> Callable[[str, int, int, int], Tensor | None]:
        return self._shares().block

    def _shares(self, make: Callable[..., Shares] = Shares) -> Shares:
        return make(
            self._layout,
            self._partition,
            self._home_partition,
            self._fabric,
            subnet=named_tensors(self._subnet),
            shards={name: shards[0] for name, shards in self._home.items()},
            whole=self._whole(),
        )

    def _whole(self) -> dict[str, Tensor]:
        """The tensors that no partition cuts, with their values in the full model."""
        mine, replicated = named_tensors(self._subnet), self._layout.replicated
        if not self._like_local_sgd:
            means = self._means([mine[name] for name in replicated], "assembling")
            whole = {name: mean.to(mine[name].dtype) for name, mean in zip(replicated, means, strict=True)}
        elif self._steps == 0:  # all nodes have the same values
            whole = {name: tensor.detach() for name, tensor in self._undealt().items()}
        else:
            whole = {name: tensor.detach().clone() for name, tensor in self._undealt().items()}
            for flat in flatten_in_place(whole.values()):
                self._fabric.all_reduce_mean(flat, "assembling")
        for name in mine.keys() - self._layout.names() - whole.keys():
            whole[name] = self._workload.initial_buffer(self._full, name).to(self._fabric.device)
        return whole

    def state_dict(self) -> dict[str, Any]:
        return {
            "subnet": self._subnet.state_dict(),
            "home": {
                name: {str(plane): shard for plane, shard in enumerate(shards)}
                for name, shards in self._home.items()
            },
            "optimizer": optimizer_state(self._optimizer),
            "steps": self._steps,
            "round": self._round,
        }

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        # Inside a round, and for the means in float64, every node keeps its own.
        settled = self._like_local_sgd and self._steps == 0
        return settled and keys[0] == "subnet" and keys[-1] in self._undealt()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = counted(state, "steps", below=self.round_steps)
        was_warming, self._round = self._warming, counted(state, "round")
        if self._warming != was_warming:
            self._cut(self._initial_rows)
        self._partition = self._deals.partition(self._round)
        self._subnet.load_state_dict(state["subnet"])
        self._home = {name: self._loaded(name, state["home"][name]) for name in self._home}
        load_optimizer_state(self._optimizer, state["optimizer"])

    def _loaded(self, name: str, planes: dict[str, Tensor]) -> list[Tensor]:
        """The home shards of tensor `name` from a checkpoint, in their order."""
        loaded = [planes[str(plane)] for plane in range(len(planes))]
        shape = self._home[name][0].shape
        if len(loaded) not in (1, 1 + len(self.options.slots)) or any(plane.shape != shape for plane in loaded):
            raise ValueError(f"home shards of {name} of another shape")
        return [plane.to(self._home[name][0].device) for plane in loaded]

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """A subnet with its gradients and optimizer state, and the home shards of tensors cut along two axes."""
        layout = layout_of(model, self._groups(model, workload, world_size))
        subnet = largest_subnet(model, layout, world_size, self.options.coverage)
        whole = averages_like_local_sgd(self.options)
        planned = subnet_footprint(self.options, layout, subnet, world_size, batch_size, whole=whole)
        if not self.options.warmup_rounds or world_size == 1:
            return planned
        assert planned.rounds is not None
        return replace(planned, before=whole_model(model, self.options, planned.rounds, batch_size))


def averages_like_local_sgd(options: Any) -> bool:
    """Whether nodes with `options` average undealt tensors as `local_sgd` does, after the warm-up."""
    return options.deal != ALL or options.coverage > 1


def _rows_of(tensor: Tensor) -> Rows:
    """The rows of `tensor`, in host memory."""
    return lambda _, rows: _rows(tensor, rows)


def _rows(tensor: Tensor, rows: Tensor | None) -> Tensor:
    values = tensor.detach().cpu()
    return values if rows is None else values[rows]
