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
(`reset`). The state of tensors that are averaged as in `local_sgd` does neither: it stays on its node. One node
alone exchanges and resets nothing.

A layer that sums over the dealt units gets a share of the sum in a subnet. Where no normalisation follows, the
subnet multiplies it by the inverse of the share (`scale=auto`). The paper's networks have BatchNorm there.

Four options lead from the paper's method towards `local_sgd`; they are this project's own:

- `deal` selects the layers whose units are dealt. Every node trains the others whole. The nodes average them as
  `local_sgd` does: in float32 and by one all-reduce, and the optimizer's state stays on its node. They do the same
  if the groups of a model leave more than a tenth of its values whole.
- `coverage=p` gives each unit to p nodes, which average its values at the end of a round. With p = n nothing is
  dealt: that is `local_sgd`, bit for bit.
- `moving` is the share of the units that a new round deals again, at least two of a group.
- `warmup_rounds` rounds of `local_sgd` come before the first deal.

On unequal nodes (`--shares`), parts are in proportion to the nodes' speeds. All nodes have equal minibatches, so a
slow node trains a smaller subnet on as many samples, and every unit sees as many samples as on equal nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, CountOrNone, Fraction, Natural
from istbench.base.options.options import option
from istbench.base.options.shares import in_proportion
from istbench.base.options.tunable import LOCAL_STEPS
from istbench.fabric import Fabric
from istbench.methods.assembling import ModelAssembler
from istbench.methods.base import Method, counted
from istbench.methods.dealt_groups import ALL, check_groups, compare_groups, dealt_groups, whole_groups
from istbench.methods.flat import BufferPlaces
from istbench.methods.footprint import Footprint, trained
from istbench.methods.optimizer import ClippedOptions, set_rate
from istbench.methods.saved_shares import Deal, SavedShares
from istbench.methods.shared_tensors import MeansInPlace, MeansWithState, averaged_in_place
from istbench.methods.subnet_footprint import subnet_footprint
from istbench.methods.subnet_share import SubnetShare, initial_rows, rows_of
from istbench.methods.wide_layers import WideLayers, updates_wide_layers
from istbench.workloads.base import Batch, Workload
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.layout import Layout, Rows, layout_of, shared_tensors
from istbench.workloads.neuron_groups.partition import Deals

_Name = Annotated[str, Meta(min_length=1, max_length=200)]


class IndependentSubnetTraining(Method):
    """Each node trains its own part of the hidden units; the parts change every round."""

    name = "ist"
    usual_place = 3
    round_option = "local_steps"
    unequal = "units"
    scheduled = True
    own_updates = "sends the optimizer's state with its units"
    own_object = "rebuilt"

    @dataclass(frozen=True, kw_only=True)
    class Options(ClippedOptions):
        local_steps: CountOrNone = option(
            20, "local steps in a round; 0 exchanges without training, as a diagnosis", tune=LOCAL_STEPS
        )
        optimizer_state: Literal["carry", "reset"] = option(
            "carry",
            "momenta and other optimizer state at an exchange: carry sends them with their unit, reset "
            "sends none and starts them at zero",
        )
        deal: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=1000)] = option(
            ALL,
            "layers whose units are dealt to the nodes: all, late, linear, or names (istbench list "
            "groups WORKLOAD)",
        )
        coverage: Count = option(1, "nodes that train each unit, and average it at the end of a round")
        moving: Fraction = option(1.0, "share of the units that a new round deals again; two of a group at least")
        warmup_rounds: Natural = option(0, "first rounds, in which the nodes train and average the whole model")
        scale: Literal["auto", "off"] = option(
            "auto",
            "sums over a subnet's units that no normalisation follows: auto multiplies them by the "
            "inverse of its share, off leaves them",
        )

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._full, self._workload, self._fabric = model, workload, fabric
        self._steps = self._round = 0  # steps of the current round
        compare_groups(self._groups(model, workload, fabric.world_size), fabric)
        if fabric.far:
            fabric.prepare_exchange_async()
        self._cut(initial_rows(model, workload, self.seed))

    def _cut(self, rows: Rows) -> None:
        """Build this node's subnet of the current round. Its values come from `rows` of the full model."""
        fabric, options = self._fabric, self.options
        layout, self._deals = self._dealing(fabric.world_size, self._round)
        self._layout, self._partition = layout, self._deals.partition(self._round)
        in_place = self._warming or averaged_in_place(options, layout)
        travelling = layout.names().difference(layout.replicated if in_place else ())
        share = self._share = SubnetShare(
            self._full, self._workload, fabric, options, layout, self._partition, travelling
        )
        share.fill(self._partition, rows)
        self._subnet, self._optimizer = share.subnet, share.optimizer
        plain = updates_wide_layers(share.optimizer, options, self._workload)
        self._wide = WideLayers(share.subnet, share.optimizer, plain=plain)
        self._shared_tensors = (
            MeansInPlace(fabric, shared_tensors(share.subnet, layout.groups))
            if in_place
            else MeansWithState(fabric, {name: share.tensors[name] for name in layout.replicated}, share.planes)
        )
        self._places = BufferPlaces(share.subnet)
        fabric.recorder.steady = not self._warming
        fabric.recorder.unlike_steps = self._warmup_rounds * self.round_steps

    def _dealing(self, world_size: int, round_index: int) -> tuple[Layout, Deals]:
        """The layout of the neuron groups that are dealt to `world_size` nodes in a round, and their deals."""
        options = self.options
        warming = world_size > 1 and round_index < options.warmup_rounds
        groups = [] if warming else self._groups(self._full, self._workload, world_size)
        deals = Deals(
            groups, world_size, seed=self.seed, coverage=options.coverage, moving=options.moving, shares=self.shares
        )
        return layout_of(self._full, groups), deals

    def _groups(self, model: nn.Module, workload: Workload, world_size: int) -> list[NeuronGroup]:
        """The groups that are dealt after the warm-up: none if every node owns all units anyway."""
        if self.options.coverage == world_size > 1:
            return []
        return dealt_groups(model, workload, world_size, self.options)

    def step(self, batch: Batch) -> Tensor:
        loss = self._train(batch)
        self._steps += 1
        if self._steps == self.round_steps:
            self.close_round()
        return loss

    def _train(self, batch: Batch) -> Tensor:
        if self.options.local_steps == 0:
            with torch.no_grad():
                return self._workload.loss(self._subnet, batch).detach()
        self._optimizer.zero_grad()
        set_rate(self._optimizer, self.learning_rate)
        with self._wide:
            loss = self._workload.loss(self._subnet, batch)
        self._wide.backward(loss)
        self.options.clip_gradients(self._subnet.parameters())
        self._optimizer.step()
        self._places.refill()
        return loss.detach()

    @torch.no_grad()
    def close_round(self) -> None:
        if self._fabric.world_size > 1:  # with one node, the subnet is the whole model in every round
            self._exchange()
        self._fabric.recorder.mark("round")
        self._steps = 0

    def _exchange(self) -> None:
        """Average what several nodes trained, and move every entry to the nodes that train it in the next round."""
        if self._layout.cut:
            old, self._partition = self._partition, self._deals.partition(self._round + 1)
            if self.options.coverage > 1:
                self._share.average_over_owners(old)
            self._share.move(old, self._partition)
        self._shared_tensors.average(self._share.counts())
        self._share.end_state()
        self._next_round()

    def _next_round(self) -> None:
        """Count a round; after the last one of the warm-up, cut this node's subnet out of the whole model."""
        self._round += 1
        if self._round == self._warmup_rounds:
            whole = self._share
            whole.optimizer.zero_grad()  # the share and its state are built in the memory of these gradients
            self._cut(rows_of(whole.tensors))
            self._share.take_state(whole, self._partition)

    @property
    def _warming(self) -> bool:
        """Whether the first deal is still to come."""
        return self._round < self._warmup_rounds

    @property
    def _warmup_rounds(self) -> int:
        return int(self.options.warmup_rounds) if self._fabric.world_size > 1 else 0

    def narrowing(self, world_size: int) -> int:
        """The nodes among which each unit has one owner."""
        each, left = divmod(world_size, self.options.coverage)
        return each if self.options.deal == ALL and not left else 1

    @property
    def round_steps(self) -> int:
        return max(1, self.options.local_steps)

    @torch.no_grad()
    def assemble(self) -> nn.Module | None:
        return self._assembler().assembled(self._full)

    @torch.no_grad()
    def blocks(self) -> Callable[[str, int, int, int], Tensor | None]:
        return self._assembler().block

    def _assembler(self, **in_flight: Any) -> ModelAssembler:
        averaged = self._steps == 0
        whole = self._share.whole(self._shared_tensors.means(averaged=averaged))
        return ModelAssembler(self._share, self._partition, whole, averaged=averaged, **in_flight)

    def state_dict(self) -> dict[str, Any]:
        return {**self._share.state_dict(), "steps": self._steps, "round": self._round}

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        return self._steps == 0 and keys[0] == "subnet" and keys[-1] in self._shared_tensors.alike

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = counted(state, "steps", below=self.round_steps)
        was_warming, self._round = self._warming, counted(state, "round")
        if self._warming != was_warming:
            self._cut(initial_rows(self._full, self._workload, self.seed))
        self._partition = self._deals.partition(self._round)
        self._share.load_state_dict(state)

    @torch.no_grad()
    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        """Every value moves from the subnets and homes of the old group to those of this one, with its state."""
        deal = self._deal(self._fabric.world_size, counted(states[0], "round"))
        saved = self._saved(states, self._deal(len(states), counted(states[0], "round")))
        share = saved.share(
            self._full, self._workload, deal, rank, coverage=self.options.coverage, carries=self._share.carries
        )
        return {**states[0], **share}

    def _deal(self, world_size: int, round_index: int) -> Deal:
        """The way in which a group of `world_size` nodes has the model in a round."""
        layout, deals = self._dealing(world_size, round_index)
        return Deal(world_size=world_size, layout=layout, partition=deals.partition(round_index))

    def _saved(self, states: Sequence[dict[str, Any]], deal: Deal) -> SavedShares:
        names = {own: name for name, own in self._share.tensors.items()}
        ordered = [names[own] for group in self._share.optimizer.param_groups for own in group["params"]]
        return SavedShares(states, deal, ordered, self.options.slots)

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        if options.coverage > world_size:
            raise UserError(
                f"coverage={options.coverage} needs as many nodes, not {world_size}; set coverage={world_size}, "
                "or leave it out"
            )
        check_groups(cls.name, model, workload, world_size, options)

    def check_shares(self, model: nn.Module, workload: Workload, shares: Sequence[float]) -> None:
        if self.options.coverage > 1:
            raise UserError(
                f"--shares deals each unit to one node, but coverage={self.options.coverage}; leave one of them out"
            )
        for group in self._groups(model, workload, len(shares)) if shares else ():
            units = in_proportion(group.size, shares)
            if 0 in units:
                raise UserError(
                    f"--shares leaves node {units.index(0)} without one of the {group.size} units of neuron group "
                    f"{group.name!r}; give it a larger share, or deal fewer layers (--set deal=...)"
                )

    def remark(self, model: nn.Module, workload: Workload, world_size: int) -> str:
        return whole_groups(model, workload, world_size, self.options)

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """A subnet with its gradients and optimizer state, and the home shards of tensors cut along two axes."""
        layout = layout_of(model, self._groups(model, workload, world_size))
        plain = updates_wide_layers(self.options.build(trained(model)), self.options, workload)
        return subnet_footprint(model, layout, self.options, world_size, batch_size, self.shares, plain=plain)
