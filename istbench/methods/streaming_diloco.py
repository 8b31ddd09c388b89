"""Streaming DiLoCo: fragments of layers take their outer steps in turn, while the nodes compute.

Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512. The layers are cut into
`fragments` runs of about as many parameters. Every `local_steps` / `fragments` local steps, the changes of the next
fragment leave. Their mean over nodes travels for `delay` local steps. Then the fragment takes its outer step, and
its live weights become `alpha` of the live ones and 1 - `alpha` of the new ones. So a link carries a fragment at a
time, and nodes wait only for what does not arrive in `delay` steps. Half of the messages leave after half of them:
see background_mean.py.

The change of a fragment is its last outer weights minus its live ones. Floating-point buffers, such as the
statistics of BatchNorm, are averaged at the end of a round.

The assembled model has the outer weights, also of the fragment in flight. Inside a round, fragments whose turn has
not come count as exchanged now, which `close_round` does. With one fragment, no delay and alpha 0 this is `diloco`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, CountOrNone, Share
from istbench.base.options.options import option
from istbench.fabric import Fabric
from istbench.methods.background_mean import BackgroundMean
from istbench.methods.base import counted
from istbench.methods.diloco import DiLoCo, OuterRoundOptions, OuterStep
from istbench.methods.flat import by_dtype, floating_tensors, places
from istbench.methods.footprint import Footprint, tensor_bytes, trained
from istbench.methods.planned_node import Format, balanced_runs, message_bytes, streaming_rounds
from istbench.methods.weights import weigh
from istbench.workloads.base import Batch, Workload


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """The trained parameters of `model`, in its order, by the module that holds them."""
    every = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    named = groupby(every, key=lambda pair: pair[0].rpartition(".")[0])
    return [[parameter for _, parameter in group] for _, group in named]


def fragment_slices(model: nn.Module, count: int) -> list[list[slice]]:
    """The fragments of `model`, each as a slice of the flat parameters of every dtype (`flatten_in_place`).

    A fragment is a run of whole layers, at least one. The largest is as small as possible.
    """
    layers = layers_of(model)
    ends = Counter(dict.fromkeys((tensor.dtype for tensor in floating_tensors(model)), 0))
    fragments = []
    for run in balanced_runs([sum(parameter.numel() for parameter in layer) for layer in layers], count):
        starts = ends.copy()
        for parameter in (parameter for layer in layers[run.start : run.stop] for parameter in layer):
            ends[parameter.dtype] += places(parameter)
        fragments.append([slice(starts[dtype], ends[dtype]) for dtype in ends])
    return fragments


class Flight:
    """The changes of fragment `number` on their way to all nodes. They land `delay` local steps after they leave.

    Half of the messages leave when the others have had half of these steps. On landing, the `fragment` takes its
    outer step by the mean change, and `alpha` of its live weights stays. Every rank calls all methods but
    `state_dict` alike. options: those of the method. weight: of this node's changes in the mean.
    """

    def __init__(self, fabric: Fabric, fragment: OuterStep, number: int, options: Any, weight: float) -> None:
        self.number, self._weight, self._fragment = number, weight, fragment
        self._delay, self._alpha, self._device = options.delay, options.alpha, fabric.device
        self._steps = 0  # since the changes left
        self.mean = BackgroundMean(fabric, sum(len(start) for start in fragment.start), options.send)

    def leave(self) -> None:
        changes = torch.cat([change.float() for change in self._fragment.changes()])
        weigh(changes, self._weight)
        self.mean.start(changes)
        self._turn()

    def step(self) -> bool:
        """After a local step: whether the fragment has landed."""
        self._steps += 1
        self._turn()
        if self._steps >= self._delay:
            self.land()
            return True
        return False

    def _turn(self) -> None:
        if self._steps >= (self._delay + 1) // 2 and not self.mean.turned:
            self.mean.turn()

    def land(self) -> None:
        self._steps = self._delay
        self._turn()
        self._move(self._fragment, self.mean.mean())

    def land_on(self, fragment: OuterStep) -> None:
        """Let a copy of the fragment land. The flight goes on. Finish the transfers before."""
        self._move(fragment, self.mean.peek())

    def _move(self, fragment: OuterStep, mean: Tensor) -> None:
        parts = mean.split([len(start) for start in fragment.start])
        changes = [part.to(start.dtype) for part, start in zip(parts, fragment.start, strict=True)]
        fragment.apply(changes, self._alpha)

    def state_dict(self) -> dict[str, Any]:
        """The messages that have arrived, and the local steps. Finish the transfers before."""
        return {"fragment": self.number, "steps": self._steps, "mean": self.mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`. The messages have arrived.

        Raises:
            UserError, ValueError: for the state of another flight.
        """
        self._steps = counted(state, "steps", below=self._delay)
        self.mean.load_state_dict(state["mean"], self._device)


class StreamingDiLoCo(DiLoCo):
    """`diloco` whose layers take their outer steps in turn, while the nodes compute."""

    name = "streaming_diloco"
    own_object = "copied"

    @dataclass(frozen=True, kw_only=True)
    class Options(OuterRoundOptions):
        fragments: Count = option(2, "runs of layers that take their outer steps in turn")
        delay: CountOrNone = option(2, "local steps in which changes travel; 1 hides only half of their time")
        alpha: Share = option(0.5, "share of the live weights that stays when a fragment arrives")
        send: Format = option("float32", "numbers in messages; bf16 and int8 round every change")

        @property
        def gap(self) -> int:
            """Local steps between two fragments."""
            return self.local_steps // self.fragments

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.local_steps % self.fragments:
                raise UserError(
                    f"local_steps={self.local_steps} must be a multiple of fragments={self.fragments}; set "
                    f"local_steps={self.fragments * (self.gap + 1)}"
                )
            if self.delay > self.gap:
                raise UserError(
                    f"delay={self.delay} must be at most {self.gap} (local_steps / fragments): one fragment "
                    f"travels at a time; set delay={self.gap}"
                )

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        super().setup(model, workload, fabric)
        self._slices = fragment_slices(self._model, self.options.fragments)
        self._fragments = [self._outer.part(slices) for slices in self._slices]
        self._flight: Flight | None = None
        fabric.recorder.last_bytes = self._last_bytes(self._model)
        fabric.prepare_exchange_async()

    def _last_bytes(self, model: nn.Module) -> int:
        """`TraceMeta.last_bytes`: the second half of the last fragment's mean, which an evaluation waits for."""
        *_, last = fragment_slices(model, self.options.fragments)
        length = sum(where.stop - where.start for where in last)
        return message_bytes(length, self.options.send) // 2 if self.options.delay else 0

    def step(self, batch: Batch) -> Tensor:
        loss = self._train(batch)
        self._steps += 1
        if self._flight is not None and self._flight.step():
            self._flight = None
        due, early = divmod(self._steps, self.options.gap)
        if not early:
            flight = self._left(due - 1, self._fragments)
            if self.options.delay:
                self._flight = flight
            else:
                flight.land()
        if self._steps == self.round_steps:
            self._end_round()
        return loss

    def _left(self, number: int, fragments: Sequence[OuterStep]) -> Flight:
        """The flight of fragment `number`, whose changes leave now."""
        flight = self._flight_of(number, fragments)
        flight.leave()
        return flight

    def _flight_of(self, number: int, fragments: Sequence[OuterStep]) -> Flight:
        return Flight(self._fabric, fragments[number], number, self.options, self._weights.node)

    def _exchange(self, fragments: Sequence[OuterStep]) -> None:
        """Exchange those of `fragments` whose turn has not come in this round, and let them land."""
        for number in range(self._steps // self.options.gap, len(fragments)):
            self._left(number, fragments).land()

    def close_round(self) -> None:
        """End the round early: the fragment in flight lands, and the others take their outer steps at once."""
        if self._flight is not None:
            self._flight.land()
            self._flight = None
        self._exchange(self._fragments)
        self._end_round()

    def _end_round(self) -> None:
        self._average_buffers(self._buffers_of(self._flat), "averaging buffers")
        super()._end_round()
        self._steps = 0

    def _average_buffers(self, buffers: Sequence[Tensor], name: str) -> None:
        for buffer in buffers:
            if buffer.numel():
                weigh(buffer, self._weights.node)
                self._fabric.all_reduce_mean(buffer, name)

    def note(self) -> str:
        sizes = [sum(len(start) for start in fragment.start) for fragment in self._fragments]
        if len(sizes) == 1:
            return ""
        least, most = min(sizes) / sum(sizes), max(sizes) / sum(sizes)
        return f"streams: {len(sizes)} fragments of {least:.0%} to {most:.0%} of the parameters"

    def drain(self) -> None:
        """Let the mean in flight arrive: an evaluation has its outer step. The fragment lands when it is due."""
        if self._flight is not None:
            self._flight.mean.finish()

    def assemble(self) -> nn.Module | None:
        self.drain()
        outer, buffers = self._outer.copy(), [flat.clone() for flat in self._buffers_of(self._flat)]
        fragments = [outer.part(slices) for slices in self._slices]
        if self._flight is not None:
            self._flight.land_on(fragments[self._flight.number])
        if self._steps:
            self._exchange(fragments)
            self._average_buffers(buffers, "assembling")
        return self._model_of(outer.start, buffers)

    def state_dict(self) -> dict[str, Any]:
        self.drain()
        return {**super().state_dict(), "flight": {} if self._flight is None else self._flight.state_dict()}

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        return keys[0] == "outer"  # live weights differ between nodes also at the end of a round

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drain()
        super().load_state_dict(state)
        self._flight = None
        if saved := state["flight"]:
            number = counted(saved, "fragment", below=self.options.fragments)
            self._flight = self._flight_of(number, self._fragments)
            self._flight.load_state_dict(saved)

    def compresses(self) -> bool:
        return bool(self.options.send != "float32")

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        super().check(options, model, workload, world_size)
        layers = len(layers_of(model))
        if options.fragments > layers:
            raise UserError(
                f"fragments={options.fragments} is more than the {layers} layers with parameters of workload "
                f"{workload.name!r}; set fragments={layers} or less"
            )

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """That of `diloco`, with buffers for one fragment while the nodes compute."""
        ordinary = super().footprint(model, workload, world_size, batch_size)
        options: StreamingDiLoCo.Options = self.options
        lengths = [
            sum(where.stop - where.start for where in slices)
            for slices in fragment_slices(model, options.fragments)
        ]
        every = floating_tensors(model)
        buffers = [tensor_bytes(group) for group in by_dtype(every[len(trained(model)) :])]
        averaged = [*buffers, *(flat.nbytes for flat in self._averaged_state(model))]
        longest = max(lengths)
        return replace(
            ordinary,
            rounds=streaming_rounds(lengths, options.send, delay=options.delay, gap=options.gap, averaged=averaged),
            last_bytes=self._last_bytes(model),
            buffers=ordinary.buffers + 4 * longest + 3 * message_bytes(longest, options.send),
            round_buffers=max(4 * longest, *averaged, 0),
        )
