"""Streaming IST: units move a few at a time, while the nodes compute. This project's own extension of `ist`.

`ist` deals all units again at the end of a round, and the nodes wait until every weight has moved. Here a wave of
units leaves after each local step, or after every `flight_steps`. A wave takes the next units of each group, in a
random order that is drawn once a round. They permute their owners among themselves and travel while the following
local steps compute. A unit misses these steps: it leaves after step t, and its new owner trains it from step t + 1
+ flight_steps on. Streaming DiLoCo (arXiv 2501.18512) does the same for DiLoCo.

The places of units in flight stay in the subnet and are zero: a unit whose weights are zero changes nothing. Other
units land in these places. Weights between two groups that are in no subnet wait at home, as in `ist`. At the end
of a round the nodes wait and average the tensors that no unit indexes.

With `optimizer_state=reset` a unit's state starts at zero where it lands. Adam's step count goes on. The state of
the tensors that every node trains starts at zero at the end of a round, unless they are averaged as in `local_sgd`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count
from istbench.base.options.options import option
from istbench.fabric import Fabric
from istbench.fabric.pending import Transfers
from istbench.methods.assembling import ModelAssembler
from istbench.methods.base import counted, fitting
from istbench.methods.dealt_groups import dealt_groups
from istbench.methods.footprint import Footprint, PlannedNode
from istbench.methods.ist import IndependentSubnetTraining
from istbench.methods.optimizer import started
from istbench.methods.saved_shares import Deal, SavedShares
from istbench.methods.subnet_footprint import shared_buffers, shared_bytes, travelling_bytes
from istbench.methods.subnets.exchange import (
    Block,
    Holdings,
    count_values,
    gather_blocks,
    values_of_blocks,
    write_blocks,
)
from istbench.methods.subnets.streaming import Flights, Timetable, Wave, expected_flights, turns_of
from istbench.workloads.base import Batch, Workload
from istbench.workloads.neuron_groups.groups import named_tensors
from istbench.workloads.neuron_groups.layout import Layout, Rows, layout_of
from istbench.workloads.neuron_groups.partition import Partition, arranged


@dataclass(kw_only=True)
class _Flying:
    """The wave in flight, as this node sees it.

    Attributes:
        round, wave: numbers of its round and of the wave in it. steps: local steps since it left.
        incoming: by peer, the places on this node where units land. arrived: by peer, the buffer of their values.
        transfers: the messages, None once they have arrived.
    """

    flights: Flights
    round: int
    wave: int
    incoming: dict[int, list[Block]]
    arrived: dict[int, Tensor]
    steps: int = 0
    transfers: Transfers | None = None


class StreamingSubnetTraining(IndependentSubnetTraining):
    """`ist` whose units move a few at a time, while the nodes compute."""

    name = "streaming_ist"

    @dataclass(frozen=True, kw_only=True)
    class Options(IndependentSubnetTraining.Options):
        flight_steps: Count = option(1, "local steps that a moving unit misses; use more on slow links")

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.coverage > 1:
                raise UserError(
                    f"coverage={self.coverage} needs ist: in streaming_ist each unit has one owner; leave it out"
                )
            if self.local_steps < 2:
                raise UserError(
                    f"units move between the local steps of a round, but local_steps={self.local_steps}; set "
                    "local_steps=2 or more, or use ist"
                )
            if self.flight_steps >= self.local_steps:
                raise UserError(
                    f"flight_steps={self.flight_steps} must be less than local_steps={self.local_steps}: no node "
                    "would train the units in flight"
                )

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        super().setup(model, workload, fabric)
        if fabric.world_size > 1:
            fabric.prepare_exchange_async()

    def _cut(self, rows: Rows) -> None:
        super()._cut(rows)
        self._timetable = self._timetable_of(self._layout, self._fabric.world_size)
        self._flying: _Flying | None = None

    def _timetable_of(self, layout: Layout, world_size: int) -> Timetable:
        waves = self.options.local_steps // self.options.flight_steps
        return Timetable(layout.groups, world_size, self.seed, waves, turns_of(layout), self.options.moving)

    def step(self, batch: Batch) -> Tensor:
        loss = self._train(batch)
        self._steps += 1
        if self._fabric.world_size > 1:  # with one node, the subnet is always the whole model
            self._move_units()
        if self._steps == self.round_steps:
            self._end_round()
        return loss

    @torch.no_grad()
    def close_round(self) -> None:
        self._land(self._share.holdings())
        self._end_round()

    @torch.no_grad()
    def _end_round(self) -> None:
        if self._fabric.world_size > 1:
            self._shared_tensors.average(self._share.counts())
            if self.options.optimizer_state == "reset":
                tensors = self._share.tensors
                for name in self._share.travelling & set(self._layout.replicated):
                    for plane in self._state_of(tensors[name]):
                        plane.zero_()
        self._next_round()
        self._fabric.recorder.mark("round")
        self._steps = 0

    @torch.no_grad()
    def _move_units(self) -> None:
        """After a local step: the last wave lands and the next one leaves, each if it is due."""
        holdings = self._share.holdings()
        if self._flying is not None:
            self._flying.steps += 1
            if self._flying.steps == self.options.flight_steps:
                self._land(holdings)
            else:
                self._silence(self._flying, holdings)
        wave, early = divmod(self._steps, self.options.flight_steps)
        if not early and wave <= self._timetable.waves:
            self._depart(wave - 1, holdings)

    def _depart(self, number: int, holdings: Holdings) -> None:
        """Send the values of wave `number` of the round on their way."""
        wave = self._timetable.wave(self._partition, self._round, number)
        if not wave.moving:
            return
        rank, like = self._fabric.rank, next(self._subnet.parameters())
        flying = self._flying_of(wave, self._round, number, holdings)
        leaving = {
            peer: gather_blocks(holdings, flying.flights.outgoing(rank, peer), like) for peer in flying.arrived
        }
        flying.arrived[rank].copy_(leaving.pop(rank))
        arriving = {peer: buffer for peer, buffer in flying.arrived.items() if peer != rank}
        flying.transfers = self._fabric.exchange_async(leaving, arriving, "streaming units")
        self._partition, self._flying = wave.new, flying
        self._silence(flying, holdings)

    def _flying_of(self, wave: Wave, round_index: int, number: int, holdings: Holdings) -> _Flying:
        """Wave `number` of a round as this node sees it, with empty buffers."""
        flights, like = Flights(self._layout, wave, self._share.home_partition), next(self._subnet.parameters())
        incoming = {peer: flights.incoming(self._fabric.rank, peer) for peer in range(self._fabric.world_size)}
        arrived = {peer: like.new_empty(count_values(holdings, blocks)) for peer, blocks in incoming.items()}
        return _Flying(flights=flights, round=round_index, wave=number, incoming=incoming, arrived=arrived)

    def _silence(self, flying: _Flying, holdings: Holdings) -> None:
        """Set to zero the places that are empty while `flying` is in flight."""
        for name, dim, index in flying.flights.empty(self._fabric.rank):
            values = holdings.subnet[name][0]
            values.index_fill_(dim, index.to(values.device), 0)

    def _land(self, holdings: Holdings) -> None:
        """Wait for the wave in flight, and write its values into their places."""
        flying, self._flying = self._flying, None
        if flying is None:
            return
        if flying.transfers is not None:
            flying.transfers.wait()
        for peer, blocks in flying.incoming.items():
            write_blocks(holdings, blocks, flying.arrived[peer])
        if self.options.optimizer_state == "reset":
            tensors = self._share.tensors
            for name, dim, index in flying.flights.empty(self._fabric.rank):
                for plane in self._state_of(tensors[name]):
                    plane.index_fill_(dim, index.to(plane.device), 0)

    def _state_of(self, tensor: Tensor) -> list[Tensor]:
        return started(self._optimizer, tensor, self.options.slots) if tensor.requires_grad else []

    def note(self) -> str:
        groups = self._layout.groups
        if self._fabric.world_size == 1 or not groups:
            return ""
        moving = sum(self._timetable.moving_share(group) * group.size for group in groups)
        share = moving / sum(group.size for group in groups) * self.options.flight_steps / self.round_steps
        return f"streams: on average {share:.1%} of the hidden units are in flight, and no node trains them"

    def drain(self) -> None:
        """Finish the transfers in flight: no transfer may run while the clock stands still."""
        if self._flying is not None and self._flying.transfers is not None:
            self._flying.transfers.finish()

    def _assembler(self, **in_flight: Any) -> ModelAssembler:
        self.drain()
        if self._flying is not None:
            holdings = self._share.holdings()
            arrived = {
                peer: values_of_blocks(holdings, blocks, self._flying.arrived[peer])
                for peer, blocks in self._flying.incoming.items()
            }
            in_flight = {"flights": self._flying.flights, "arrived": arrived}
        return super()._assembler(**in_flight)

    def state_dict(self) -> dict[str, Any]:
        """The state of `ist`, with the places of the units before the wave in flight left, and that wave."""
        self.drain()
        flying = self._flying
        partition = self._partition if flying is None else flying.flights.wave.old
        return {
            **super().state_dict(),
            "places": _places(partition),
            "flying": {}
            if flying is None
            else {
                "round": flying.round,
                "wave": flying.wave,
                "steps": flying.steps,
                "arrived": {str(peer): buffer for peer, buffer in flying.arrived.items()},
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drain()
        super().load_state_dict(state)
        self._partition = _placed(self._partition, state["places"])
        self._flying = self._loaded_wave(state["flying"]) if state["flying"] else None

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        """As in `ist`. Units in flight land first, and none is in flight in the state."""
        state = super().resharded(states, rank)
        partition = self._deal(self._fabric.world_size, counted(state, "round")).partition
        return {**state, "places": _places(partition), "flying": {}}

    def _saved(self, states: Sequence[dict[str, Any]], deal: Deal) -> SavedShares:
        first, partition = states[0], _placed(deal.partition, states[0]["places"])
        saved = super()._saved(states, replace(deal, partition=partition))
        if not (flying := first["flying"]):
            return saved
        timetable = self._timetable_of(deal.layout, deal.world_size)
        wave = timetable.wave(partition, counted(flying, "round"), counted(flying, "wave", below=timetable.waves))
        flights, landed = Flights(deal.layout, wave, deal.home), list[Holdings]()
        for node, state in enumerate(states):
            landed.append(saved.holdings(node, carries=self._share.carries))
            for peer, buffer in state["flying"]["arrived"].items():
                write_blocks(landed[-1], flights.incoming(node, int(peer)), buffer)
        return saved.landed(replace(deal, partition=wave.new), landed)

    def _loaded_wave(self, state: dict[str, Any]) -> _Flying:
        """The wave in flight in a checkpoint. All its values have arrived."""
        number = counted(state, "wave", below=self._timetable.waves)
        round_index = counted(state, "round", below=self._round + 1)
        wave = self._timetable.wave(self._partition, round_index, number)
        flying = self._flying_of(wave, round_index, number, self._share.holdings())
        flying.steps = counted(state, "steps", below=self.options.flight_steps)
        for peer, buffer in flying.arrived.items():
            buffer.copy_(fitting(state["arrived"][str(peer)], buffer, "units in flight"))
        self._partition = wave.new
        return flying

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        super().check(options, model, workload, world_size)
        groups = dealt_groups(model, workload, world_size, options)
        workload.prove_silence(groups)
        try:
            turns = turns_of(layout_of(model, groups))
        except ValueError as error:
            raise UserError(f"workload {workload.name!r} cannot stream: {error}") from None
        least = 1 + max(turns.values())
        if options.local_steps // options.flight_steps < least:
            raise UserError(
                f"layers of workload {workload.name!r} stream in {least} turns a round: flight_steps="
                f"{options.flight_steps} leaves time for {options.local_steps // options.flight_steps} in "
                f"local_steps={options.local_steps}; set local_steps={least * options.flight_steps} or more"
            )

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """The footprint of `ist`, with buffers for one wave while the nodes compute, and not for a whole subnet."""
        ordinary = super().footprint(model, workload, world_size, batch_size)
        if world_size == 1:
            return ordinary
        layout = layout_of(model, self._groups(model, workload, world_size))
        tensors = named_tensors(ordinary.model)
        planes = travelling_bytes(self.options, tensors, world_size)
        timetable = self._timetable_of(layout, world_size)
        moves = [expected_flights(layout, timetable, number, planes) for number in range(timetable.waves)]
        shared = shared_bytes(self.options, layout, ordinary.model, world_size)
        flight_steps = self.options.flight_steps

        def rounds(node: PlannedNode) -> Iterator[None]:
            flying: list[int] = []
            while True:
                for moved in moves:
                    node.steps(flight_steps)
                    node.wait(flying)
                    each = round(moved.sent / (world_size - 1))
                    peers = node.peers if each else ()  # a wave without units sends no message
                    flying = [node.post("receive", each, [peer]) for peer in peers]
                    flying += [node.post("send", each, [peer]) for peer in peers]
                node.steps(self.round_steps - flight_steps * len(moves))
                for size in shared:
                    node.all_reduce(size)
                yield

        return replace(
            ordinary,
            rounds=rounds,
            buffers=round(max(moved.gathered + moved.sent for moved in moves)),
            round_buffers=shared_buffers(self.options, layout, shared),
        )


def _places(partition: Partition) -> dict[str, Tensor]:
    """The units of each group in the order of their places, node after node."""
    return {name: torch.cat(parts.units) for name, parts in partition.items()}


def _placed(partition: Partition, places: Mapping[str, Tensor]) -> Partition:
    """The partition with parts as large as those of `partition`, and units at `places`.

    Raises:
        ValueError: a unit has no place, or several.
    """
    placed = {}
    for name, parts in partition.items():
        if not torch.equal(places[name].sort().values, torch.arange(len(parts.owner))):
            raise ValueError(f"units of {name!r} in no place, or in several")
        placed[name] = arranged(places[name].split([len(units) for units in parts.units]))
    return placed
