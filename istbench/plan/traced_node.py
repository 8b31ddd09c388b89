"""A planned node whose local steps take given seconds, and are marked as a recorder marks them."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from numpy.typing import NDArray

from istbench.base.errors import UserError
from istbench.cluster.repeated_nodes import one_stands_for_all
from istbench.cluster.trace import Trace, TraceMeta
from istbench.cluster.trace_builder import EarlierOperations, merge, set_work
from istbench.methods.planned_node import MOST_EVENTS, PlannedNode, PlannedRounds, StepCost


@dataclass(frozen=True, kw_only=True)
class UpdateCost:
    """Seconds of an update after the gradients of a local step are complete.

    Attributes:
        before_s: on every node, before the optimizer starts. optimizer_s: of the optimizer over all values.
        adding_s: to add the whole gradient of one more node, on a server.
    """

    before_s: float = 0.0
    optimizer_s: float = 0.0
    adding_s: float = 0.0


class TracedNode(PlannedNode):
    """A node of a trace.

    Args:
        seconds: of the local steps in turn, without their updates. update: of every step.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        cost: StepCost,
        seconds: Sequence[float] | NDArray[Any],
        update: UpdateCost | None = None,
    ) -> None:
        super().__init__(rank, world_size, cost, 0.0)
        self._in_turn = [float(own) for own in seconds]
        self._steps = itertools.cycle(self._in_turn)
        self._update = update or UpdateCost()
        self._open = self._updated = self._leading = False
        self._earlier = EarlierOperations()
        self._worked: dict[int, float] = {}

    def traced(self, rounds: Iterator[None], count: int) -> NDArray[Any]:
        """The events of `count` of `rounds`, which may wait for operations of one more before them."""
        self._lead_in(rounds)
        for _ in range(count):
            next(rounds)
            self._end_round()
        events = self.builder.to_arrays()
        set_work(events, self._worked)
        return events

    def _lead_in(self, rounds: Iterator[None]) -> None:
        self._leading = True
        next(rounds)
        self._end_step()
        self._leading = False
        self._earlier.close()
        self._steps = itertools.cycle(self._in_turn)
        self._worked.clear()
        self.builder.clear()

    def post(
        self, kind: str, bytes: int, peers: Sequence[int] = (), priority: int = 0, after: Sequence[int] = ()
    ) -> int:
        if self._leading:
            return self._earlier.post(kind, peers)
        return super().post(kind, bytes, peers, priority, [op for op in after if op >= 0])

    def wait(self, ops: Iterable[int]) -> None:
        for op in ops:
            if op >= 0:
                self.builder.wait(op)
            elif op in self._earlier:
                self.builder.wait_before(*self._earlier.take(op))

    def worked(self, op: int, seconds: float) -> None:
        self._worked[op] = seconds

    def steps(self, count: int, *, updates: bool = True) -> None:
        for _ in range(count):
            self._begin()
            self.builder.compute(self._seconds)
            if updates:
                self.update()
            self._updated = True

    def forward(self) -> Iterator[int]:
        self._begin()
        return super().forward()

    def update(self, share: float = 1.0) -> None:
        seconds = self._update.before_s + share * self._update.optimizer_s
        if seconds:
            self.builder.compute(seconds)
        self._updated = True

    def only_gradients(self) -> None:
        self._updated = True

    def update_seconds(self, share: float) -> float:
        return share * (self._update.optimizer_s + (self.world_size - 1) * self._update.adding_s)

    def _end_round(self) -> None:
        """Mark the end of a round inside its last step."""
        self._update_at_last()
        self.builder.mark("round")
        self._end_step()

    def _begin(self) -> None:
        if self._open:
            self._end_step()
        self._open, self._updated, self._seconds = True, False, next(self._steps)

    def _update_at_last(self) -> None:
        """Update now if the method's plan does not say when its optimizer steps."""
        if not self._updated:
            self.update()

    def _end_step(self) -> None:
        self._update_at_last()
        self.builder.mark("step")
        self._open = False


def trace_of_rounds(
    method: str,
    planned: PlannedRounds,
    node: Callable[[int], TracedNode],
    nodes: int,
    recorded: TraceMeta,
    least_steps: int,
) -> Trace:
    """The trace of whole rounds of at least `least_steps` local steps; one node stands for all that repeat it.

    node: a new one of each rank. recorded: the machine that recorded the seconds of its steps.

    Raises:
        UserError: as `check_events` does, and for rounds that are no trace.
    """

    @functools.cache
    def traced(rank: int) -> NDArray[Any]:
        own = node(rank)
        return own.traced(planned.rounds(own), -(-least_steps // planned.steps))

    count = 1 if one_stands_for_all(traced, nodes) else nodes
    check_events(method, len(traced(0)) * count, nodes)
    events = [traced(rank) for rank in range(count)]
    try:
        return trace_like(recorded, events, nodes, planned.window, planned.last_bytes)
    except ValueError as error:
        raise UserError(f"the rounds of {method} are no trace: {error}") from None


def check_events(method: str, events: int, nodes: int) -> None:
    """Refuse a trace of too many `events` of all nodes.

    Raises:
        UserError: naming `method`.
    """
    if events > MOST_EVENTS:
        raise UserError(f"{method} has too many messages on {nodes} nodes to replay them in minutes")


def trace_like(
    recorded: TraceMeta, events: Sequence[NDArray[Any]], nodes: int, window: int | None, last_bytes: int
) -> Trace:
    """The trace of `events` on `nodes` nodes, with the machine and the speeds of `recorded`.

    events: of the first nodes, which the others repeat (`Trace`). window, last_bytes: as in `TraceMeta`.
    """
    meta = msgspec.structs.asdict(recorded) | {"window": window, "last_bytes": last_bytes}
    del meta["nodes"]
    return merge(events, world_size=nodes, **meta)
