"""Local SGD: every node trains by itself, and every `local_steps` steps the nodes average their weights.

Stich, "Local SGD converges fast and communicates little", ICLR 2019. One fused all-reduce averages all parameters
and floating-point buffers, also the running statistics of BatchNorm. (Every evaluation estimates these again,
istbench/node/evaluate.py.) Each node keeps the vectors of a spectral normalisation. The optimizer's state stays
local, unless `average_optimizer` averages it by a second all-reduce.

With `ddp_rounds`, the nodes average after every local step of the first rounds: post-local SGD (Lin et al., ICLR
2020, arXiv 1808.07217). With SGD these rounds train as `ddp` does, also with momentum. The optimizer's state stays
local there too. At the end of these rounds the nodes average it once, so that all go on with one momentum, as those
of `ddp` would.

With `group`, the nodes of a group train as one, such as the GPUs of a host. They average their gradients after
every backward pass, in one message, and have equal weights at all times. At the end of a round each node averages
an equal part of the weights with the nodes at its place in the other groups. Then the group gathers the parts. So
one model crosses the link of a host, whatever the number of its nodes. With `ddp_rounds` too, the groups average
their weights after every local step of the first rounds.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Natural
from istbench.base.options.options import option
from istbench.base.options.tunable import LOCAL_STEPS
from istbench.fabric import Fabric
from istbench.fabric.group import GroupNodes, Groups, check_group, groups_of
from istbench.methods.base import Method, OwnObject, Unequal, all_gradients, counted, materialise
from istbench.methods.flat import BufferPlaces, average, by_dtype, flatten_in_place, floating_tensors, places
from istbench.methods.footprint import Footprint, PlannedNode, tensor_bytes, trained, whole_model
from istbench.methods.model_state import load_model_state, model_state
from istbench.methods.optimizer import (
    ClippedOptions,
    load_optimizer_state,
    optimizer_state,
    state_tensors,
    update_counts,
)
from istbench.methods.planned_node import rounds_after
from istbench.methods.resharding import mean_optimizer, mean_tensors
from istbench.methods.weights import Weights, weigh
from istbench.methods.wide_layers import WideLayers, updates_wide_layers
from istbench.workloads.base import Batch, Workload
from istbench.workloads.neuron_groups.layout import own_vectors

_MOST_PLANNED = 2**14  # steps of all nodes in a planned round of groups


@dataclass(frozen=True, kw_only=True)
class RoundOptions(ClippedOptions):
    """Options of methods whose nodes train alone for `local_steps` steps."""

    local_steps: Count = option(20, "local steps between two averages", tune=LOCAL_STEPS)
    average_optimizer: bool = option(False, "average the optimizer's state with the weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average_optimizer and self.rule.whole_matrices:
            raise UserError(f"average_optimizer cannot average the state of {self.optimizer}; leave it out")
        if self.average_optimizer and not self.slots:
            raise UserError(
                "average_optimizer averages the state of the optimizer, but sgd without momentum has none; set "
                "momentum=0.9, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class GroupedOptions(RoundOptions):
    group: GroupNodes = option(
        1, "nodes that average gradients in every local step, and train as one: a number, or host"
    )


class LocalSGD(Method):
    """Rounds of `local_steps` local steps, then the mean of the models of all nodes."""

    name = "local_sgd"
    usual_place = 1
    narrow_control = True
    round_option = "local_steps"
    unequal: ClassVar[Unequal] = "models"
    scheduled = True
    own_updates = ""
    own_object: ClassVar[OwnObject] = "moved"

    @dataclass(frozen=True, kw_only=True)
    class Options(GroupedOptions):
        ddp_rounds: Natural = option(
            0, "first rounds, in which the nodes (or groups) average their weights after every local step"
        )

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._workload = workload
        self._fabric = fabric
        self._model = materialise(model, workload, self.seed, fabric.device)
        # One flat buffer behind all tensors: the average is one all-reduce without copies. The tensors of a single
        # node stay where they are, so that it computes as a plain loop does, to the last bit but for `WideLayers`.
        self._flat = flatten_in_place(floating_tensors(self._model)) if fabric.world_size > 1 else []
        self._places = BufferPlaces(self._model)
        # Each flat tensor holds the trained parameters of a dtype first, then its buffers.
        self._sizes = Counter[torch.dtype]()
        for parameter in trained(self._model):
            self._sizes[parameter.dtype] += places(parameter)
        self._groups = groups_of(fabric, self._group)
        self._weights = Weights.of(self.samples, fabric.rank, self._group)
        self._optimizer = self.build_optimizer(self._model, workload)
        plain = updates_wide_layers(self._optimizer, self.options, workload) and self._groups is None
        self._wide = WideLayers(self._model, self._optimizer, plain=plain)
        self._steps = 0  # of the current round
        self._ddp_steps = self._ddp_rounds * self.options.local_steps
        fabric.recorder.warmup_steps = self._ddp_steps
        fabric.recorder.warmup_state = len(self.options.slots) if self._averages_state_once else 0
        fabric.recorder.steady = not self._ddp_steps

    @property
    def _group(self) -> int:
        """Nodes that train as one; 1 in methods that extend this one without groups."""
        nodes: int = getattr(self.options, "group", 1)
        return nodes

    @property
    def _ddp_rounds(self) -> int:
        return int(getattr(self.options, "ddp_rounds", 0))

    @property
    def _averages_state_once(self) -> bool:
        """Whether the nodes average the optimizer's state at the end of `ddp_rounds`, and at no other time."""
        return bool(self._ddp_rounds) and not self.options.average_optimizer

    @property
    def round_steps(self) -> int:
        return self.options.local_steps

    def accumulation(self) -> int:
        """The local steps of a round. It ends in one average of the model, which is as large as a gradient."""
        more = self.options.average_optimizer or self._ddp_rounds or self._group != 1
        return 1 if more or self.compresses() else int(self.options.local_steps)

    def step(self, batch: Batch) -> Tensor:
        loss = self._train(batch)
        self._steps += 1
        if self._steps == self.round_steps:
            self.close_round()
        elif self.local_step < self._ddp_steps:
            self._average_models()
        return loss

    def _train(self, batch: Batch) -> Tensor:
        self._optimizer.zero_grad()
        self.set_rates(self._optimizer)
        with self._wide:
            loss = self._workload.loss(self._model, batch)
        self._wide.backward(loss)
        if self._groups is not None:
            gradients = all_gradients(trained(self._model))
            average(self._groups.inside, gradients, "averaging gradients", self._weights.inside)
        self.options.clip_gradients(self._model.parameters())
        self._optimizer.step()
        if self._flat:
            self._places.refill()
        return loss.detach()

    def close_round(self) -> None:
        self._fabric.recorder.steady = self.local_step + 1 >= self._ddp_steps
        self._average()
        self._steps = 0

    def _average(self) -> None:
        self._average_models()
        if self._averages_state_once and self.local_step + 1 == self._ddp_steps:
            self._average_state()
        self._fabric.recorder.mark("round")

    def _average_models(self) -> None:
        for flat in self._flat:
            self._average_flat(flat, "averaging models")
        if self.options.average_optimizer:
            self._average_state()

    def _average_flat(self, flat: Tensor, name: str) -> None:
        """Replace `flat`, parameters or their changes before buffers, by the mean over nodes."""
        if self._groups is None:
            weigh(flat, self._weights.node)
            self._fabric.all_reduce_mean(flat, name)
        else:
            alike = self._sizes[flat.dtype]
            weigh(flat[:alike], self._weights.group)
            weigh(flat[alike:], self._weights.node)
            self._groups.all_reduce_mean(flat, name, alike=alike)

    def _average_state(self) -> None:
        """Replace the optimizer's state by its mean over nodes."""
        state = list(state_tensors(self._optimizer, self.options))
        counts = update_counts(self._optimizer, self.options)
        # torch keeps them in host memory also with a GPU.
        joined = [torch.stack(counts).to(self._fabric.device)] if counts else []
        if state:
            name = "averaging optimizer state"
            average(self._groups or self._fabric, [*state, *joined], name, self._weights.group)
        for count, mean in zip(counts, itertools.chain(*joined), strict=True):
            count.copy_(mean)

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        super().check(options, model, workload, world_size)
        check_group("group", getattr(options, "group", 1), world_size)

    def assemble(self) -> nn.Module | None:
        if self._steps == 0:
            return self._model if self._fabric.rank == 0 else None
        # Inside a round the assembled model is the mean of the nodes' models, which do not change.
        assembled = copy.deepcopy(self._model)
        for flat in flatten_in_place(floating_tensors(assembled)):
            self._average_flat(flat, "assembling")
        return assembled if self._fabric.rank == 0 else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": model_state(self._model),
            "optimizer": optimizer_state(self._optimizer),
            "steps": self._steps,
        }

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        if self._steps:  # the nodes' models differ until the round ends
            return False
        if keys[0] == "optimizer":
            return self.options.average_optimizer and keys[-1] in self.options.slots
        return keys[0] == "model" and keys[1] in self._averaged_names

    @cached_property
    def _averaged_names(self) -> set[str]:
        """Names in `model_state` of the tensors that the nodes average. A forward pass adds none: see `refill`."""
        tensors = ((name, own) for name, own in model_state(self._model).items() if isinstance(own, Tensor))
        return {name for name, own in tensors if own.is_floating_point()} - own_vectors(self._model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_model_state(self._model, state["model"])
        load_optimizer_state(self._optimizer, state["optimizer"])
        self._steps = counted(state, "steps", below=self.round_steps)

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        model = mean_tensors([own["model"] for own in states])
        model |= {name: states[0]["model"][name] for name in own_vectors(self._model)}
        return {**states[0], "model": model, "optimizer": mean_optimizer([own["optimizer"] for own in states])}

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """The whole model, averaged in place."""
        state = self._averaged_state(model)
        at_end = [flat.nbytes for flat in state if self.options.average_optimizer]
        averaged = [tensor_bytes(floating_tensors(model)), *at_end]

        def rounds(node: PlannedNode) -> Iterator[None]:
            if groups := groups_of(node, self._group):
                yield from self._grouped_rounds(node, groups, model)
            yield from rounds_after(self.round_steps, averaged)(node)

        warmup = self._ddp_rounds
        note = f"in the first {warmup} rounds the nodes average after every local step; a later round is planned"
        whole = whole_model(model, self.options, rounds, batch_size, own=workload.optimizer)
        grouped = self._group != 1
        plain = updates_wide_layers(self.options.build(trained(model)), self.options, workload) and not grouped
        # The gradients in one tensor, and the terms of the other nodes.
        gradients = 2 * tensor_bytes(trained(model)) if grouped else 0
        too_long = grouped and self.round_steps * world_size > _MOST_PLANNED
        return replace(
            whole,
            rounds=None if too_long else rounds,
            updates_wide_layers=plain,
            round_buffers=max(*(flat.nbytes for flat in state), gradients, 0),
            notes=(*whole.notes, note) if warmup else whole.notes,
        )

    def _grouped_rounds(self, node: PlannedNode, groups: Groups, model: nn.Module) -> Iterator[None]:
        gradients = [_flat_like(own) for own in by_dtype(trained(model))]
        values = [_flat_like(own) for own in by_dtype(floating_tensors(model))]
        state = self._averaged_state(model) if self.options.average_optimizer else []
        while True:
            for _ in range(self.round_steps):
                node.steps(1, updates=False)
                for flat in gradients:
                    groups.inside.all_reduce_mean(flat, "")
                node.update()
            for flat in values:
                groups.all_reduce_mean(flat, "", sum(own.numel() for own in gradients if own.dtype == flat.dtype))
            for flat in state:
                groups.all_reduce_mean(flat, "")
            yield

    def _averaged_state(self, model: nn.Module) -> list[Tensor]:
        """The optimizer's state that the nodes average at the end of a round, or of a warm-up: flat, by dtype."""
        options = self.options
        if not options.slots or not (options.average_optimizer or self._ddp_rounds):
            return []
        tensors: list[Tensor] = [own for own in trained(model) for _ in options.slots]
        if counts := sum(len(options.rule.counts(own.dim())) for own in trained(model)):
            tensors.append(torch.empty(counts, device="meta"))
        return [_flat_like(group) for group in by_dtype(tensors)]


def _flat_like(tensors: list[Tensor]) -> Tensor:
    """A flat tensor on the meta device, as large as `tensors` together."""
    return torch.empty(sum(own.numel() for own in tensors), dtype=tensors[0].dtype, device="meta")
