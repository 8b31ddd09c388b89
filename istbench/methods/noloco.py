"""NoLoCo: DiLoCo in pairs of nodes, without an all-reduce.

Kolehmainen et al., "NoLoCo: No-all-reduce low communication training method for large models", arXiv 2506.10911.
Every node starts a round from slow weights of its own. At the end of the round the nodes form random pairs. The two
nodes of a pair send each other their slow weights and their changes. Each takes a modified Nesterov step with the
means of the pair:

    momentum = outer_momentum x momentum - outer_lr x mean change - pull x (slow weights - mean slow weights)
    slow weights = slow weights + momentum

A change is the slow weights minus those after the local steps. The last term pulls the weights of the pair
together. On two nodes they stay equal. On more nodes they differ and stay close, because every round has other
pairs. With an odd number of nodes, one node a round takes its step alone. The assembled model is the mean of all.
At the end of a run the nodes make it by one all-reduce, on the clock.

The paper lets the slow weights travel during the local steps. Here, as in the authors' code, they travel with the
changes. That code has no `pull`; it pulls by `outer_lr`, which is the default here. The paper also routes
activations between pipeline stages at random; here every node has the whole model. Floating-point buffers, such as
the statistics of BatchNorm, are averaged in pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Share
from istbench.base.options.options import option
from istbench.base.options.tunable import LOCAL_STEPS, OUTER_MOMENTUM
from istbench.base.seeds import derived_seed
from istbench.fabric import Fabric
from istbench.methods.base import counted
from istbench.methods.diloco import DiLoCo, OuterRoundOptions
from istbench.methods.flat import by_dtype, floating_tensors
from istbench.methods.footprint import Footprint, PlannedNode, tensor_bytes, trained
from istbench.methods.resharding import mean_tensors
from istbench.workloads.base import Workload

Pull = Annotated[float, Meta(gt=0, lt=2)]
"""From 2 on, two nodes that always form a pair may drift apart."""


class NoLoCo(DiLoCo):
    """DiLoCo in random pairs of nodes that pull each other's weights together, without an all-reduce."""

    name = "noloco"
    unequal = ""  # a pair that pulls by its samples would move the mean of all
    own_object = "copied"

    @dataclass(frozen=True, kw_only=True)
    class Options(OuterRoundOptions):
        local_steps: Count = option(50, "local steps between two exchanges", tune=LOCAL_STEPS)
        outer_momentum: Share = option(0.5, "momentum of the outer step", tune=OUTER_MOMENTUM)
        pull: Pull = option(0.7, "pull of the slow weights towards the mean of the pair")

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.average_optimizer:
                raise UserError("average_optimizer needs an all-reduce, and noloco does without; leave it out")
            if self.outer_rule != "nesterov":
                raise UserError(f"outer_rule={self.outer_rule} is for diloco; noloco has a rule of its own")

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        super().setup(model, workload, fabric)
        self._round = 0
        fabric.recorder.last_bytes = sum(flat.nbytes for flat in self._flat)
        fabric.prepare_exchange_async()

    def _average(self) -> None:
        partner = partner_of(self._fabric.rank, self._fabric.world_size, self.seed, self._round)
        for slow, momentum, change, live, buffers in self._tensors():
            mine = torch.cat([slow, change, buffers])
            mean_slow, mean_change, mean_buffers = self._pair_mean(mine, partner).split(
                [len(slow), len(change), len(buffers)]
            )
            self._advance(momentum, mean_change)
            momentum.sub_(slow - mean_slow, alpha=self.options.pull)
            live.copy_(slow.add_(momentum))
            buffers.copy_(mean_buffers)
        self._round += 1
        self._end_round()

    def _tensors(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """By dtype: slow weights, momentum, change so far, live weights and buffers, each flat."""
        live, buffers = self._parameters_of(self._flat), self._buffers_of(self._flat)
        return zip(self._outer.start, self._outer.momentum, self._outer.changes(), live, buffers, strict=True)

    def _pair_mean(self, mine: Tensor, partner: int | None) -> Tensor:
        """The mean of `mine` and that of `partner`, the same on both bit for bit; `mine` without a partner."""
        theirs = torch.empty_like(mine)
        peers = [] if partner is None else [partner]
        sends, receives = dict.fromkeys(peers, mine), dict.fromkeys(peers, theirs)
        self._fabric.exchange_async(sends, receives, "averaging in pairs").wait()
        return theirs.add_(mine).div_(2) if peers else mine

    def _advance(self, momentum: Tensor, change: Tensor) -> Tensor:
        """Move `momentum` by the mean `change`, in place; the pull comes later."""
        return momentum.mul_(self.options.outer_momentum).sub_(change, alpha=self.options.outer_lr)

    def assemble(self) -> nn.Module | None:
        # Inside a round it is that after the exchange. The pulls of a pair cancel out, so the pairs do not matter.
        means = []
        for slow, momentum, change, _, buffers in self._tensors():
            after = slow + self._advance(momentum.clone(), change) if self._steps else slow
            means.append(torch.cat([after, buffers]))
            self._fabric.all_reduce_mean(means[-1], "assembling")
        return self._model_of(self._parameters_of(means), self._buffers_of(means))

    def finish(self) -> None:
        for slow, _, _, live, buffers in self._tensors():
            mean = torch.cat([slow, buffers])
            self._fabric.all_reduce_mean(mean, "averaging models")
            slow.copy_(mean[: len(slow)])
            live.copy_(slow)
            buffers.copy_(mean[len(slow) :])

    def accumulation(self) -> int:
        """None: a node sends to one other node."""
        return 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "round": self._round}

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        return False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._round = counted(state, "round")

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        outer = {name: mean_tensors([own["outer"][name] for own in states]) for name in states[0]["outer"]}
        return {**super().resharded(states, rank), "outer": outer}

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """That of `diloco`, with a message to one node and one from it."""
        whole = super().footprint(model, workload, world_size, batch_size)
        messages = [
            tensor_bytes(group) + tensor_bytes(own for own in group if isinstance(own, nn.Parameter))
            for group in by_dtype(floating_tensors(model))
        ]

        def rounds(node: PlannedNode) -> Iterator[None]:
            number = 0
            while True:
                node.steps(self.round_steps)
                partner = partner_of(node.rank, world_size, self.seed, number)
                if partner is not None:
                    for size in messages:
                        node.wait([node.post("receive", size, [partner]), node.post("send", size, [partner])])
                yield
                number += 1

        # The changes, a difference, and the message of each node.
        return replace(
            whole,
            rounds=rounds,
            last_bytes=tensor_bytes(floating_tensors(model)),
            notes=(*whole.notes, "at the end of a run the nodes average their models, once"),
            round_buffers=2 * tensor_bytes(trained(model)) + 2 * max(messages, default=0),
        )


def partner_of(rank: int, world_size: int, seed: int, round_index: int) -> int | None:
    """The rank that forms a pair with `rank` in a round; None for the node that is left over.

    Every node draws the same random order of ranks. Its first two form a pair, then the next two, and so on.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, "pairs", round_index))
    order: list[int] = torch.randperm(world_size, generator=generator).tolist()
    place = order.index(rank) ^ 1
    return order[place] if place < world_size else None
