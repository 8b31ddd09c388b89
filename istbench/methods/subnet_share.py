"""One node's share of the model in Independent Subnet Training, and its exchange with those of the other nodes.

A share is a subnet with its optimizer, and home shards. A home shard keeps entries in no subnet, of a tensor
that is cut along two axes.
"""

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.methods.model_state import load_model_state, model_state
from istbench.methods.optimizer import load_optimizer_state, optimizer_state, started, update_counts
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
from istbench.workloads.base import Workload
from istbench.workloads.memory_order import memory_format
from istbench.workloads.neuron_groups.groups import named_tensors
from istbench.workloads.neuron_groups.layout import (
    CutTensor,
    Layout,
    Rows,
    build_subnet,
    initial_part,
    part_of_subnet,
    subnet_index,
)
from istbench.workloads.neuron_groups.partition import Partition, home_partition, units_on


class SubnetShare:
    """The share of the node of `fabric` in the model, with the initial buffers of `workload`.

    Args:
        model: the full model, on the meta device.

    Attributes:
        travelling: names of the tensors whose optimizer state travels with their values.
        subnet: the module that the node trains; its tensors are uninitialised before `fill`. optimizer: of its
            parameters.
        home: by tensor name, the node's shard of values, and of optimizer state once there is any.
        home_partition: the nodes that keep the entries of no subnet.
    """

    def __init__(
        self,
        model: nn.Module,
        workload: Workload,
        fabric: Fabric,
        options: Any,
        layout: Layout,
        partition: Partition,
        travelling: Set[str],
    ) -> None:
        self._model, self._workload, self.fabric = model, workload, fabric
        self._options, self.travelling, self.layout = options, travelling, layout
        self.home_partition = home_partition(layout.groups, fabric.world_size)
        self.subnet = build_subnet(model, layout.groups, units_on(fabric.rank, partition), fabric.device)
        self.optimizer = options.build(self.subnet.parameters())
        self.home: dict[str, list[Tensor]] = {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        return named_tensors(self.subnet)

    @torch.no_grad()
    def fill(self, partition: Partition, rows: Rows) -> None:
        """Give subnet and home shards the values of the full model from `rows`."""
        rank, tensors = self.fabric.rank, self.tensors
        for cut in self.layout.cut:
            tensors[cut.name].copy_(initial_part(cut, subnet_index(cut, partition, rank), rows))
        for name in self.layout.replicated:
            tensors[name].copy_(rows(name, None))
        for name in tensors.keys() - self.layout.names():
            whole = self._workload.initial_buffer(self._model, name)
            tensors[name].copy_(part_of_subnet(name, whole, self.layout.groups, partition, rank))
        if 2 * self._options.coverage > self.fabric.world_size:
            return  # any two units have a common owner: every entry is in a subnet
        for cut in self.layout.cut:
            if cut.needs_home:
                shard = self._home_shard(cut, rows)
                self.home[cut.name] = [shard.to(self.fabric.device, tensors[cut.name].dtype)]

    def take_state(self, whole: "SubnetShare", partition: Partition) -> None:
        """Take the part of this subnet from the optimizer's state of `whole`, a share with all units."""
        cuts, state = {cut.name: cut for cut in self.layout.cut}, whole.optimizer.state
        old = {name: state[tensor] for name, tensor in whole.tensors.items() if tensor in state}
        for name, tensor in self.tensors.items():
            if self._options.optimizer_state == "reset" and name in self.travelling:
                continue
            for slot, value in old.get(name, {}).items():
                if name in cuts and slot in self._options.slots and value is not None:
                    index = subnet_index(cuts[name], partition, self.fabric.rank)
                    value = initial_part(cuts[name], index, rows_of({name: value}))
                    value = value.to(tensor).contiguous(memory_format=memory_format(tensor))
                self.optimizer.state[tensor][slot] = value
        if self.carries:
            self._take_home_state(whole)

    def _take_home_state(self, whole: "SubnetShare") -> None:
        """Take the part of the home shards from the optimizer's state of `whole`: every node has trained it."""
        tensors = whole.tensors
        for cut in self.layout.cut:
            if cut.name not in self.home or not tensors[cut.name].requires_grad:
                continue
            for plane in started(whole.optimizer, tensors[cut.name], self._options.slots):
                shard = self._home_shard(cut, rows_of({cut.name: plane}))
                self.home[cut.name].append(shard.to(self.fabric.device))

    def _home_shard(self, cut: CutTensor, rows: Rows) -> Tensor:
        return initial_part(cut, subnet_index(cut, self.home_partition, self.fabric.rank)[:1], rows)

    @property
    def carries(self) -> bool:
        """Whether the optimizer's state travels with its values."""
        return bool(self._options.optimizer_state == "carry" and self._options.local_steps)

    def planes(self) -> dict[str, list[Tensor]]:
        """By name of a travelling tensor: its values and its optimizer state, even before the optimizer has any."""
        slots = self._options.slots if self.carries else ()
        return {
            name: [tensor.data, *(started(self.optimizer, tensor, slots) if tensor.requires_grad else ())]
            for name, tensor in self.tensors.items()
            if name in self.travelling
        }

    def counts(self) -> list[Tensor]:
        """The numbers of updates of the tensors whose optimizer state travels."""
        tensors = self.tensors
        among = {id(tensors[name]) for name in self.travelling}
        return update_counts(self.optimizer, self._options, among) if self.carries else []

    def holdings(self) -> Holdings:
        """The values on this node, with the optimizer state that travels with them."""
        subnet = self.planes()
        for name, shards in self.home.items():
            # Without a warm-up, no node has trained these entries so far: their state is zero, as at first.
            missing = len(subnet[name]) - len(shards)
            shards.extend(torch.zeros_like(shards[0]) for _ in range(missing))
        return Holdings(subnet, self.home)

    def average_over_owners(self, partition: Partition) -> None:
        """Replace the entries that this node leads by the means over their owners in `partition`."""
        holdings, reduction = self.holdings(), ReduceToLead(self.layout, partition)
        rank, like = self.fabric.rank, next(self.subnet.parameters())
        peers = [peer for peer in range(self.fabric.world_size) if peer != rank]
        led = reduction.led(rank)
        outgoing = {peer: gather_blocks(holdings, reduction.outgoing(rank, peer), like) for peer in peers}
        arriving = {peer: like.new_empty(values_reduced(led, peer)) for peer in peers}
        self.fabric.exchange_among_all(outgoing, arriving, "averaging units")
        take_means(holdings, led, arriving)

    def move(self, old: Partition, new: Partition) -> None:
        """Move every entry from its lead in partition `old` to its owners in `new`, or home."""
        holdings, plan = self.holdings(), Repartition(self.layout, old, new, self.home_partition)
        rank, peers, like = self.fabric.rank, range(self.fabric.world_size), next(self.subnet.parameters())
        # Copy all values out of their tensors first, also those that stay on this node; then write.
        outgoing = {peer: gather_blocks(holdings, plan.outgoing(rank, peer), like) for peer in peers}
        incoming = {peer: plan.incoming(rank, peer) for peer in peers}
        arrived = {peer: like.new_empty(count_values(holdings, incoming[peer])) for peer in peers if peer != rank}
        arrived[rank] = outgoing.pop(rank)
        arriving = {peer: buffer for peer, buffer in arrived.items() if peer != rank}
        self.fabric.exchange_among_all(outgoing, arriving, "exchanging subnets")
        for peer, buffer in arrived.items():
            write_blocks(holdings, incoming[peer], buffer)

    def end_state(self) -> None:
        """With `optimizer_state=reset`, forget the optimizer's state of the tensors whose state would travel."""
        if self._options.optimizer_state == "reset":
            tensors = self.tensors
            for name in self.travelling:
                self.optimizer.state.pop(tensors[name], None)

    def whole(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that no partition cuts, in the assembled model: `means`, and buffers of this node.

        Running statistics have their initial values, as an evaluation estimates them, but on one node.
        """
        found, tensors = dict(means), self.tensors
        for name in tensors.keys() - self.layout.names() - means.keys():
            initial = self._workload.initial_buffer(self._model, name).to(self.fabric.device)
            owner = self._model.get_submodule(name.rpartition(".")[0])
            stays = self.fabric.world_size == 1 or not isinstance(owner, nn.modules.batchnorm._BatchNorm)
            found[name] = tensors[name].detach() if stays and tensors[name].shape == initial.shape else initial
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "subnet": model_state(self.subnet),
            "home": {
                name: {str(plane): shard for plane, shard in enumerate(shards)}
                for name, shards in self.home.items()
            },
            "optimizer": optimizer_state(self.optimizer),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_model_state(self.subnet, state["subnet"])
        slots = len(self._options.slots)
        self.home |= {
            name: loaded_shards(name, state["home"][name], shards[0], slots) for name, shards in self.home.items()
        }
        load_optimizer_state(self.optimizer, state["optimizer"])


def loaded_shards(name: str, planes: Mapping[str, Tensor], like: Tensor, slots: int) -> list[Tensor]:
    """The home shards of tensor `name` from a checkpoint, in their order, on the device of `like`.

    Raises:
        ValueError: if they have another shape than `like`, or there are not 1 or 1 + `slots` of them.
    """
    loaded = [planes[str(plane)] for plane in range(len(planes))]
    if len(loaded) not in (1, 1 + slots) or any(plane.shape != like.shape for plane in loaded):
        raise ValueError(f"home shards of {name} of another shape")
    return [plane.to(like.device) for plane in loaded]


def initial_rows(model: nn.Module, workload: Workload, seed: int) -> Rows:
    """Reads rows of the full model that `seed` gives."""
    parameters = {name for name, _ in model.named_parameters()}

    def rows(name: str, indices: Tensor | None) -> Tensor:
        if name in parameters:
            return workload.initial_rows(model, name, indices, seed)
        buffer = workload.initial_buffer(model, name)
        return buffer if indices is None else buffer[indices]

    return rows


def rows_of(tensors: dict[str, Tensor]) -> Rows:
    """Reads rows of full `tensors`, in host memory."""

    def rows(name: str, indices: Tensor | None) -> Tensor:
        values = tensors[name].detach().cpu()
        return values if indices is None else values[indices]

    return rows
