"""Fully sharded data parallel: torch's `fully_shard`, as users run it.

Every node keeps an n-th of the rows of every parameter, with their gradient and optimizer state (Rajbhandari et
al., SC 2020; Zhao et al., VLDB 2023). Nodes gather parameters in groups, shortly before a forward or a backward
pass needs them, and drop them after it. During the backward pass they average the gradients of one group at a time,
and each node receives those of its own rows.

The groups follow from the model. Candidates are its children, and those of a Sequential, ModuleList or ModuleDict
in it. A candidate with at least `group_params` parameters is a group; inner ones come first. Nodes gather the
remaining parameters once a step, for both passes. Only the forward pass of a group's module uses its parameters, on
every node alike.

torch passes its collectives to `set_custom_all_gather` and `set_custom_reduce_scatter`, which pass them to the
fabric. With gloo, torch would wait for each collective at its start. Here, as on GPUs, it runs beside the computing
until its result is needed.

With `accumulate`, torch keeps the gathered parameters and the sums of their gradients from the first to the last
minibatch of a round. No collective runs between: a round gathers once and averages once, as long as it is.

With `shard`, groups of nodes share the parameters, such as the GPUs of a host, and the groups are replicas of the
model: torch's hybrid sharding. The rows of a gradient are averaged inside a group, and then by the nodes that have
these rows. torch cuts the model for the group alone, so the second mean passes through the fabric too.

BatchNorm: as in `ddp`.
"""

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin
from torch.distributed.tensor import DTensor

from istbench.base.error_lines import reason_of
from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, CountOrNone
from istbench.base.options.options import option
from istbench.base.options.tunable import ACCUMULATED
from istbench.fabric import Fabric, Pending
from istbench.fabric.group import Group, Groups, check_group
from istbench.methods.base import Method, counted, fitting
from istbench.methods.footprint import Footprint, PlannedNode, tensor_bytes
from istbench.methods.optimizer import ClippedOptions, load_optimizer_state, optimizer_state, set_rate
from istbench.methods.resharding import mean_tensors
from istbench.methods.sharded_groups import Gradients, PlannedGroups, gathered_modules, shard_rows
from istbench.workloads.base import Batch, Workload
from istbench.workloads.initialise import with_storage

_CUT = re.compile("mixed torch.Tensor and DTensor|storage of size 0")
"""In torch's errors of code that reads a parameter that is cut, or is gathered no longer."""


class FullySharded(Method):
    """Data parallel with an n-th of the parameters, gradients and optimizer state on each node."""

    name = "fsdp"
    joint_rounds = True
    round_option = "accumulate"
    own_object = "gathered"
    all_gradients = True  # torch's reduce-scatter sends the gradients that there are
    own_updates = "cuts parameters by rows, and updates the rows of each node"
    unequal = "gradients"
    scheduled = True
    interrupts = "waits for parameters module by module inside a forward pass"

    @dataclass(frozen=True, kw_only=True)
    class Options(ClippedOptions):
        group_params: Count = option(100_000, "least parameters of a block that is gathered by itself")
        forward_prefetch: bool = option(True, "gather the next block while one computes its forward pass")
        accumulate: Count = option(
            1, "minibatches of a node in an optimizer step, without collectives between them", tune=ACCUMULATED
        )
        shard: CountOrNone | Literal["host"] = option(
            0, "nodes that share the parameters: a number, host, or 0 for all; others are replicas"
        )

    @property
    def round_steps(self) -> int:
        return int(self.options.accumulate)

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._workload, self._fabric = workload, fabric
        self._full = copy.deepcopy(model)
        self._model = model
        nodes = _shards(self.options, fabric.world_size)
        groups = Groups(fabric, nodes) if nodes < fabric.world_size else None
        # The nodes that share the parameters, and those that have the same rows.
        self._inside: Fabric | Group = fabric if groups is None else groups.inside
        self._across = None if groups is None else groups.across
        self._gradients = Gradients(self._inside, self._across)
        self._minibatches = 0  # of the current round
        self._idle: set[str] | None = None  # parameters without a gradient in the first step
        self._cut()
        with_storage(model, fabric.device)
        self._fill()
        self._shards = dict(model.named_parameters())
        self._optimizer = self.options.build(self._shards.values())

    def _cut(self) -> None:
        """Let torch cut the model, which has no storage yet, and route its collectives through the fabric."""
        for parameter in self._model.parameters():
            parameter.data = parameter.data.contiguous()  # torch cuts no other
        modules = gathered_modules(self._model, self.options.group_params)
        names = {module: name for name, module in self._model.named_modules()}
        for module in (*reversed(modules), self._model):  # the innermost first
            sharded = fully_shard(module, mesh=self._fabric.mesh_of(self._inside.world_size))
            what = names[module] or "the model"
            sharded.set_custom_all_gather(_Gather(self._inside, f"gathering {what}"))
            sharded.set_custom_reduce_scatter(_Reduce(self._gradients, f"averaging gradients of {what}"))
            # Only sums: the fabric makes means of them.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        if self.round_steps > 1:
            self._root.set_reshard_after_forward(False)
        if self.options.forward_prefetch:
            for module, following in zip((self._model, *modules), modules, strict=False):
                module.set_modules_to_forward_prefetch([following])  # type: ignore[operator]

    @torch.no_grad()
    def _fill(self) -> None:
        for name, parameter in self._model.named_parameters():
            own = self._rows(parameter, self._inside.rank)
            if own:
                rows = torch.arange(own.start, own.stop)
                _local(parameter).copy_(self._workload.initial_rows(self._full, name, rows, self.seed))
        for name, buffer in self._model.named_buffers():
            buffer.copy_(self._workload.initial_buffer(self._full, name))

    def _rows(self, parameter: Tensor, rank: int) -> range:
        return shard_rows(parameter.shape[0], rank, self._inside.world_size)

    def note(self) -> str:
        modules = gathered_modules(self._full, self.options.group_params)
        names = {module: name for name, module in self._full.named_modules()}
        blocks = [names[module] for module in modules]
        return (
            f"gathers {', '.join(blocks)} apart" if blocks else "gathers the whole model at once: no block is large"
        )

    @property
    def _root(self) -> FSDPModule:
        assert isinstance(self._model, FSDPModule)
        return self._model

    def step(self, batch: Batch) -> Tensor:
        if not self._minibatches:
            self._optimizer.zero_grad()
        self._minibatches += 1
        ends = self._minibatches == self.round_steps
        self._root.set_requires_gradient_sync(ends)
        self._root.set_reshard_after_backward(ends)
        try:
            loss = self._workload.loss(self._model, batch)
            (loss if self.round_steps == 1 else loss / self.round_steps).backward()
        except RuntimeError as error:
            if not _CUT.search(str(error)):
                raise
            raise UserError(
                f"{reason_of(error)}; fsdp has whole parameters only inside model(...) and one backward pass: "
                "use ddp for a loss that reads them elsewhere, or has a gradient of a gradient"
            ) from error
        if ends:
            self._gradients.finish()
            self._update()
            self._fabric.recorder.mark("round")
        return loss.detach()

    def _update(self) -> None:
        self._require_gradients()
        self._run_hooks()
        self._clip()
        set_rate(self._optimizer, self.learning_rate)
        self._optimizer.step()
        self._minibatches = 0

    def close_round(self) -> None:
        self._average_open_round()
        self._fabric.recorder.mark("round")

    @torch.no_grad()
    def _average_open_round(self) -> None:
        """Step on the mean gradient of fewer minibatches than a round has."""
        nodes = self._inside.world_size
        for name, whole in self._gathered().items():
            gradient, whole.grad = whole.grad, None
            if gradient is None:
                continue
            gradient.mul_(self.round_steps / self._minibatches)
            most = len(self._rows(whole, 0))
            parts = gradient.new_zeros(nodes * most, *gradient.shape[1:])
            parts[: len(gradient)] = gradient
            mine = parts.new_empty(most, *gradient.shape[1:])
            self._gradients.average(mine.view(-1), parts.view(-1), f"averaging gradients of {name}")
            self._gradients.finish()
            own = mine[: len(self._rows(whole, self._inside.rank))]
            self._shards[name].grad = self._spread(own, self._shards[name])
        for module in self._cut_modules():
            module.reshard()
        self._update()

    def _cut_modules(self) -> list[FSDPModule]:
        return [module for module in self._model.modules() if isinstance(module, FSDPModule)]

    def _gathered(self) -> dict[str, nn.Parameter]:
        """The whole parameters with their gradients, inside a round of several minibatches."""
        return {name: own for name, own in self._model.named_parameters() if not isinstance(own, DTensor)}

    def _require_gradients(self) -> None:
        """Refuse a step whose parameters without a gradient are others than in the first step.

        torch's reduce-scatter sends the gradients that there are, so nodes would add up those of other parameters.
        A task file with such parameters was refused before.

        Raises:
            UserError: naming a parameter.
        """
        trained = [(name, own) for name, own in self._shards.items() if own.requires_grad]
        idle = {name for name, own in trained if own.grad is None and _local(own).numel()}
        if self._idle is None:
            self._idle = set() if self._workload.start_sums() else idle
        if other := sorted(idle ^ self._idle):
            raise UserError(
                f"some minibatches give no gradient to {other[0]}, and fsdp needs the same in each step; use ddp"
            )

    @torch.no_grad()
    def _run_hooks(self) -> None:
        """Call the hooks of gradients, such as that of a scaled loss: torch does not call the hooks of shards."""
        for parameter in self._shards.values():
            for hook in (parameter._backward_hooks or {}).values():
                if parameter.grad is not None:
                    parameter.grad = hook(parameter.grad)

    @torch.no_grad()
    def _clip(self) -> None:
        """Clip the gradients by their norm over all nodes; each node has only its rows of them."""
        if not self.options.clip:
            return
        gradients = [_local(shard.grad) for shard in self._shards.values() if shard.grad is not None]
        squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum().reshape(1)
        self._inside.all_reduce_mean(squares, "adding up the gradient's norm")
        squares.mul_(self._inside.world_size)
        factor = (self.options.clip / (squares.sqrt() + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(factor)

    @torch.no_grad()
    def assemble(self) -> nn.Module | None:
        if not self._minibatches:
            return self._assembled()
        # Inside a round the assembled model is the one that closing the round gives.
        before = copy.deepcopy(self.state_dict())
        self._average_open_round()
        full = self._assembled()
        self.load_state_dict(before)
        return full

    def _assembled(self) -> nn.Module | None:
        full = with_storage(copy.deepcopy(self._full), self._fabric.device) if self._fabric.rank == 0 else None
        nodes = self._inside.world_size
        for name, parameter in self._shards.items():
            # The first group has all rows.
            ranks = range(self._fabric.world_size)
            rows = [self._rows(parameter, rank) if rank < nodes else range(0) for rank in ranks]
            sizes = [len(own) * math.prod(parameter.shape[1:]) for own in rows]
            shard = _local(parameter).reshape(-1)[: sizes[self._fabric.rank]]
            for rank, values in self._fabric.gather_to_zero(shard, sizes, f"assembling {name}"):
                if full is not None:
                    whole = full.get_parameter(name)
                    whole[rows[rank].start : rows[rank].stop] = values.view(-1, *whole.shape[1:])
        if full is not None:
            for name, buffer in self._model.named_buffers():
                full.get_buffer(name).copy_(buffer)
        return full

    def state_dict(self) -> dict[str, Any]:
        optimizer = optimizer_state(self._optimizer)
        slots = {
            index: {name: _local(value) if isinstance(value, Tensor) else value for name, value in kept.items()}
            for index, kept in optimizer["state"].items()
        }
        state: dict[str, Any] = {
            "shards": {name: _local(parameter) for name, parameter in self._shards.items()},
            "buffers": dict(self._model.named_buffers()),
            "optimizer": {**optimizer, "state": slots},
        }
        if self.round_steps > 1:
            whole = self._gathered() if self._minibatches else {}
            state["minibatches"] = self._minibatches
            state["gradients"] = {name: own.grad for name, own in whole.items() if own.grad is not None}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in self._shards.items():
            own = _local(parameter)
            own.copy_(fitting(state["shards"][name], own, f"shard {name}"))
        for name, buffer in self._model.named_buffers():
            buffer.copy_(fitting(state["buffers"][name], buffer, f"buffer {name}"))
        numbered = [shard for group in self._optimizer.param_groups for shard in group["params"]]
        slots = {
            index: {name: self._spread(value, numbered[int(index)]) for name, value in kept.items()}
            for index, kept in state["optimizer"]["state"].items()
        }
        load_optimizer_state(self._optimizer, {**state["optimizer"], "state": slots})
        if self.round_steps > 1:
            self._optimizer.zero_grad()  # torch would add to the gradients of a closed round
            self._minibatches = counted(state, "minibatches", below=self.round_steps)
            self._go_on_inside(state["gradients"])

    def _go_on_inside(self, gradients: dict[str, Tensor]) -> None:
        """Gather the parameters for a round that has begun, with the sums of their `gradients`."""
        for module in self._cut_modules() if self._minibatches else ():
            with self._fabric.accounting("assemble"):
                module.unshard()
        whole = self._gathered()
        for name, gradient in gradients.items():
            whole[name].grad = fitting(gradient, whole[name], f"gradient {name}").to(self._fabric.device)

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        shards = _shards(self.options, self._fabric.world_size)
        first, *_ = old = states[: _shards(self.options, len(states))]  # together they have all rows

        def recut(parts: Sequence[Tensor]) -> Tensor:
            whole = torch.cat([*parts])
            own = shard_rows(len(whole), rank % shards, shards)
            return whole[own.start : own.stop]

        slots: dict[str, dict[str, Any]] = {}
        for index in dict.fromkeys(index for state in old for index in state["optimizer"]["state"]):
            # A node without rows of a parameter may have no state of it.
            kept = [own for state in old if (own := state["optimizer"]["state"].get(index))]
            slots[index] = {
                slot: recut([own[slot] for own in kept]) if isinstance(value, Tensor) and value.dim() else value
                for slot, value in (kept[0] if kept else {}).items()
            }
        state = {
            **first,
            "shards": {name: recut([own["shards"][name] for own in old]) for name in first["shards"]},
            "optimizer": {**first["optimizer"], "state": slots},
        }
        if state.get("minibatches"):
            state["gradients"] = mean_tensors([own["gradients"] for own in states])
        return state

    def _spread(self, value: Any, parameter: nn.Parameter) -> Any:
        """Optimizer state `value` of this node's rows of `parameter`, as the DTensor that torch expects."""
        if not isinstance(value, Tensor) or not value.dim():
            return value
        assert isinstance(parameter, DTensor)
        return DTensor.from_local(
            fitting(value, _local(parameter), "optimizer state").to(self._fabric.device),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        if options.shard:
            check_group("shard", options.shard, world_size)
        if options.shard == 1 and world_size > 1:
            raise UserError("shard=1 keeps the whole model on every node; use ddp, or a larger shard")
        for name, parameter in model.named_parameters():
            if not parameter.numel() or not parameter.dim():
                what = "a single number" if parameter.numel() else "a parameter without values"
                raise UserError(
                    f"fsdp cuts parameters by rows; workload {workload.name!r} has {what}, {name}; use ddp"
                )

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """A shard of everything, and the groups that are gathered or in transfer at one time."""
        options = self.options
        nodes = _shards(options, world_size)
        groups = PlannedGroups.of(
            model,
            options.group_params,
            nodes,
            world_size,
            ahead=options.forward_prefetch,
            accumulate=options.accumulate,
        )
        shards = tuple(
            nn.Parameter(parameter[: len(shard_rows(len(parameter), 0, nodes))], parameter.requires_grad)
            for parameter in model.parameters()
        )
        stepped = tuple(shard for shard in shards if shard.requires_grad)

        def rounds(node: PlannedNode) -> Iterator[None]:
            norm = torch.empty(1, device="meta")
            for _ in groups.rounds(node):
                if nodes == world_size:
                    node.all_reduce(norm.nbytes)
                else:
                    Groups(node, nodes).inside.all_reduce_mean(norm, "")
                yield

        return Footprint(
            model=model,
            rounds=rounds if options.clip else groups.rounds,
            optimizer_state=len(options.slots) * tensor_bytes(stepped),
            stepped=stepped,
            build=options.build,
            samples=batch_size,
            shards=shards,
            gradients_copied=True,
            buffers=groups.buffers("nccl"),
            gloo_buffers=groups.buffers("gloo") - groups.buffers("nccl"),
        )


class _Gather(DefaultAllocMixin, AllGather):
    """torch's all-gather of a group's parameters, through the fabric."""

    def __init__(self, nodes: Fabric | Group, name: str) -> None:
        self._nodes, self._name = nodes, name

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, async_op: bool = False
    ) -> Pending:
        return self._nodes.all_gather_async(output_tensor, input_tensor, self._name)


class _Reduce(DefaultAllocMixin, ReduceScatter):
    """torch's reduce-scatter of a group's gradients, through the fabric."""

    def __init__(self, gradients: Gradients, name: str) -> None:
        self._gradients, self._name = gradients, name

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        self._gradients.average(output_tensor, input_tensor, self._name)


def _shards(options: FullySharded.Options, world_size: int) -> int:
    """The nodes that share the parameters."""
    nodes = options.shard or world_size
    assert isinstance(nodes, int)
    return nodes


def _local(tensor: Tensor) -> Tensor:
    """This node's rows of `tensor`, not copied; `tensor` itself if it is not cut."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor
