"""The step of a recorded script as the cost of a plan, and as a trace. Needs no torch."""

from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray

from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.cluster.trace_builder import TraceBuilder
from istbench.methods.planned_node import PlannedNode, StepCost
from istbench.plan.traced_node import TracedNode, UpdateCost, trace_like, trace_of_nodes

LEAST_STEPS = 4


def _computing_s(record: ScriptRecord) -> float:
    """Seconds of a recorded step without its update."""
    return max(0.0, record.step_s - record.update_s - record.before_update_s)


def step_cost(record: ScriptRecord) -> StepCost:
    """The recorded step, as the cost of a plan; its shares are those of the seconds without the update."""
    by_place = sorted(record.parameters, key=lambda parameter: parameter.place)
    parameters = [parameter for parameter in by_place if parameter.trained]
    whole = _computing_s(record) or 1.0

    def in_order(seconds: list[float | None], *, unseen: float) -> tuple[tuple[int, float], ...]:
        """Parameters by number, by rising share of the computing before their moment."""
        shares = [unseen if moment is None else min(1.0, moment / whole) for moment in seconds]
        return tuple(sorted(enumerate(shares), key=lambda pair: pair[1]))

    peak, work = record.peak_bytes, record.machine.work
    return StepCost(
        # The peak is of the process, with its model and optimizer.
        peak=None if peak is None else max(0, peak - record.model_bytes - record.state_bytes),
        batch=0,
        flops=work.operations if work else None,
        bytes=work.bytes if work else 0.0,
        uses=in_order([parameter.used_s for parameter in parameters], unseen=0.0),
        ready=in_order([parameter.ready_s for parameter in parameters], unseen=1.0),
    )


def trace_of_rounds(
    record: ScriptRecord,
    method: str,
    rounds: Callable[[PlannedNode], Iterator[None]],
    round_steps: int,
    nodes: int,
    *,
    window: int | None,
    last_bytes: int,
) -> Trace:
    """The trace of whole `rounds` of at least 4 local steps by `method`, which take the recorded seconds.

    window, last_bytes: as in `TraceMeta`.

    Raises:
        UserError: for too many messages.
    """
    cost, seconds, memory = step_cost(record), [_computing_s(record)], record.machine.memory_gb_per_s
    update = UpdateCost(
        before_s=record.before_update_s,
        optimizer_s=record.update_s,
        # Adding reads two values and writes one.
        adding_s=3e-9 * record.gradient_bytes / memory if memory else 0.0,
    )

    def events(rank: int) -> NDArray[Any]:
        node = TracedNode(rank, nodes, cost, seconds, update)
        return node.traced(rounds(node), -(-LEAST_STEPS // round_steps))

    return trace_of_nodes(method, record.machine, events, nodes, window, last_bytes)


def alone_trace(record: ScriptRecord) -> Trace:
    """The trace of the recorded process: a step without messages."""
    builder = TraceBuilder(lambda: 0.0)
    builder.compute(record.step_s)
    builder.mark("step")
    return trace_like(record.machine, [builder.to_arrays()], 1, None, 0)
