"""Deal a recorded run to another number of nodes: its work and messages there, from the method's footprint.

The recorded seconds of each local step stay, times the ratio of the operations that the plans count on both numbers
of nodes. The messages are those of the plan. The nodes take the seconds of the recorded nodes in turn, or those of
the slowest.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from istbench.base.errors import UserError
from istbench.cluster.collective import Backend
from istbench.cluster.estimate import most_sent
from istbench.cluster.repeated_nodes import one_stands_for_all
from istbench.cluster.trace import COMPUTE, MARK, POST, STEP, WORK, Trace
from istbench.methods.base import Method
from istbench.node.registry import plugins_of
from istbench.plan.planned_cell import PlannedCell
from istbench.plan.traced_node import check_events, trace_like
from istbench.results.header import Header
from istbench.results.load import Run

_MOST_KINDS = 64
_OFF_BY = 0.1


def redeal(run: Run, trace: Trace, nodes: int, plugins: Iterable[str] = ()) -> tuple[Run, Trace]:
    """`run` and its `trace` as `nodes` nodes would have made them.

    The run keeps its evaluations, at the same numbers of local steps. The trace has the first nodes alone if the
    others repeat them (`Trace`). plugins: the user's files with code of runs; of those, it imports the run's own.

    Raises:
        UserError: if the method does not say how its work and messages change with the nodes, or for lack of code.
    """
    if run.header.config.shares is not None and nodes != run.header.nodes:
        raise UserError(f"its --shares are for {run.header.nodes} nodes; record it on equal ones, or on {nodes}")
    own = plugins_of(run.header.config, plugins)
    recorded, planned = (_planned(run.header, count, own) for count in (trace.world_size, nodes))
    _check(recorded, trace)
    scale = planned.operations / recorded.operations
    worked = [own["seconds"][(own["code"] == POST) & (own["kind"] == WORK)].sum() for own in trace.nodes]
    work = float(np.mean(worked)) / trace.steps
    seconds = [scale * _step_seconds(events, trace.steps) for events in trace.nodes]
    first = planned.events(0, seconds[0], work)
    if one_stands_for_all(lambda rank: planned.events(rank, seconds[0], work), nodes):
        count = len(seconds)
        shared = count if nodes % count == 0 else next(k for k in range(count, 0, -1) if nodes % k == 0)
        ranks = range(nodes if shared < count and nodes <= _MOST_KINDS else shared)
        if len(ranks) < count:  # all wait for the slowest
            seconds.sort(key=np.sum, reverse=True)
    else:
        ranks = range(nodes)
    check_events(run.header.method, len(first) * len(ranks), nodes)
    events = [planned.events(rank, seconds[rank % len(seconds)], work) for rank in ranks]
    # One node alone has no warm-up of `ist`, and several may have one.
    of_step = trace.meta.work
    if of_step is not None:
        names = ("operations", "bytes", "gathered")
        of_step = msgspec.structs.replace(of_step, **{name: scale * getattr(of_step, name) for name in names})
    meta = msgspec.structs.replace(trace.meta, unlike_steps=planned.footprint.unlike_steps, work=of_step)
    window = planned.footprint.window or trace.meta.window
    dealt = trace_like(meta, events, nodes, window, planned.footprint.last_bytes)
    if dealt.steps != trace.steps:
        raise UserError(f"{run.header.method} plans {dealt.steps} steps where {trace.steps} were recorded")
    sent = most_sent(events, nodes, _backend(trace)) / dealt.steps
    return _dealt(run, planned.method, dealt, sent), dealt


def _backend(trace: Trace) -> Backend:
    return "nccl" if trace.meta.device == "cuda" else "gloo"


def _planned(header: Header, nodes: int, plugins: tuple[str, ...]) -> PlannedCell:
    request = header.config.request(nodes=nodes, plugins=plugins, shares=None, elastic=None)
    planned = PlannedCell.of(request, recorded=True)
    if header.parameters and planned.parameters != header.parameters:
        raise UserError("the model of the run depends on its data, and cannot be planned without them")
    return planned


def _check(planned: PlannedCell, trace: Trace) -> None:
    """Refuse a plan whose bytes are not those that were recorded.

    Raises:
        UserError: if they differ by more than a tenth.
    """
    backend = _backend(trace)
    recorded = most_sent(trace.nodes, trace.world_size, backend) / trace.steps
    steps, nodes = np.zeros(planned.method.round_steps), trace.world_size
    # Servers of a parameter server differ, and so do roots of a broadcast.
    expected = most_sent((planned.events(rank, steps, 0.0) for rank in range(nodes)), nodes, backend) / len(steps)
    if abs(expected - recorded) > _OFF_BY * max(expected, recorded):
        raise UserError(
            f"its plan sends {expected / 1e6:.3g} MB a step, but the run sent {recorded / 1e6:.3g}: it cannot be "
            "dealt to other nodes"
        )


def _step_seconds(events: NDArray[Any], steps: int) -> NDArray[Any]:
    """Seconds of computing in each local step [steps]."""
    step = np.cumsum((events["code"] == MARK) & (events["kind"] == STEP))
    computing = np.where(events["code"] == COMPUTE, events["seconds"], 0.0)
    return np.bincount(np.minimum(step, steps - 1), weights=computing, minlength=steps)


def _dealt(run: Run, method: Method, trace: Trace, sent_per_step: float) -> Run:
    """`run` with the header of the nodes of `trace`, without measurements that do not follow from the plan."""
    header, result, nodes = run.header, run.header.result, trace.world_size
    samples_per_step = header.batch_size * method.minibatches(nodes)

    def counts(step: int) -> dict[str, int]:
        """Samples and bytes up to `step`."""
        exchanges = int(trace.warmup_exchanges(step)) * trace.round_steps
        sent = round(sent_per_step * (step + exchanges))
        return {
            "samples": step * samples_per_step,
            "bytes_sent_per_node": sent,
            "bytes_received_per_node": sent,
        }

    if result is not None:
        result = msgspec.structs.replace(
            result, **counts(result.steps), peak_memory_bytes_per_node=None, node_seconds=()
        )
    evaluations = tuple(msgspec.structs.replace(at, **counts(at.step)) for at in run.curve.evaluations)
    return dataclasses.replace(
        run,
        header=msgspec.structs.replace(header, nodes=nodes, result=result),
        curve=dataclasses.replace(run.curve, evaluations=evaluations),
        extrapolated_from=header.nodes,
    )
