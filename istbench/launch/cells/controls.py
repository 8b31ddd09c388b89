"""Controls: cells that show how much of a gain comes from something else than the method."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from istbench.base.errors import UserError
from istbench.base.options.defaults import BASELINE, OF_GROUPS
from istbench.base.options.run import RunRequest
from istbench.base.units import counted
from istbench.node.registry import build_method, build_workload, load_method

if TYPE_CHECKING:
    from istbench.methods.base import Method
    from istbench.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class Control:
    """A control: its cell, and its purpose in words."""

    request: RunRequest
    purpose: str


def on_few_nodes(requests: Sequence[RunRequest], known: Iterable[int | None] | None = None) -> list[Control]:
    """The controls of methods on few nodes, such as `diloco` on one: how much of a gain needs no exchange.

    known: the nodes of each request's control, where the method need not be imported.
    """
    if known is None:
        known = [load_method(request.method, request.plugins).control_nodes for request in requests]
    found = []
    for request, nodes in zip(requests, known, strict=True):
        if nodes is not None:
            options = {name: value for name, value in request.method_options.items() if name != OF_GROUPS}
            control = replace(request, nodes=nodes, tuned=None, shares=None, method_options=options)
            found.append(Control(request=control, purpose=f"{_on_nodes(control)}, its control"))
    return found


def one_machine(requests: Sequence[RunRequest]) -> list[Control]:
    """The controls on one node alone, without an exchange: whether several machines are needed at all.

    Each copies a `ddp` among `requests` that averages the gradients of every minibatch as they are; beside others
    of its seed and workload, it is a `ddp` with default options.
    """
    beside = defaultdict[tuple[object, ...], list[RunRequest]](list)
    for request in requests:
        beside[_alike(replace(request, nodes=1, shares=None))].append(request)
    return [
        Control(
            request=replace(own, nodes=1, tuned=None, shares=None),
            purpose=f"{BASELINE} on 1 node, to see if one machine is enough",
        )
        for alike in beside.values()
        if any(request.nodes > 1 for request in alike)
        for own in _plain(alike) or [replace(alike[0], method=BASELINE, method_options={})]
    ]


def _plain(requests: Sequence[RunRequest]) -> list[RunRequest]:
    """The `ddp` that averages the gradients of every minibatch as they are; none that cannot be built."""
    found = []
    for own in requests:
        with suppress(UserError):
            if own.method == BASELINE and _built(own)[1].joint_steps():
                found.append(own)
    return found


def _built(request: RunRequest) -> "tuple[Workload, Method]":
    """The workload and the method of `request`.

    Raises:
        UserError: if they cannot be built.
    """
    workload = build_workload(request.workload, request.workload_options, request.plugins)
    method = build_method(request.method, request.method_options, workload=workload, plugins=request.plugins)
    return workload, method


def at_equal_cost(requests: Sequence[RunRequest]) -> tuple[list[Control], list[str]]:
    """The controls at a subnet's width and of accumulation, for the methods among `requests`.

    - At a subnet's width: where a method cuts the model, plain ones such as `ddp` train one as wide as its subnets.
    - Of accumulation: where a method averages the model at the end of a round, `ddp` accumulates the minibatches of
      a round, and so sends as many bytes. A `ddp` that compresses its gradients has no such control.

    Each control copies a request of the method that it trains, with its seed, so pairs by seed exist. Nobody tuned
    the options for a control. A request that cannot be built has no control.

    Returns:
        The controls, and a line for each workload without a narrower model.
    """
    from istbench.methods.base import CutsUnits  # which imports torch; `on_few_nodes` does without

    found, lacking, accumulate = list[Control](), dict[str, None](), load_method(BASELINE).round_option
    beside = defaultdict[tuple[object, ...], list[RunRequest]](list)
    for request in requests:
        beside[_alike(request)].append(request)
    for request in requests:
        try:
            workload, method = _built(request)
        except UserError:  # the cell of the request says so
            continue
        others, steps = beside[_alike(request)], method.accumulation()
        for other in _plain(others) if steps > 1 and request.nodes > 1 else ():
            options = {**other.method_options, accumulate: steps}
            purpose = f"{_on_nodes(other)} with {accumulate}={steps}: the bytes of {request.method}"
            found.append(Control(request=replace(other, method_options=options, tuned=None), purpose=purpose))
        try:
            times = method.narrowing(request.nodes) if isinstance(method, CutsUnits) else 1
            found += _narrow(request, workload.narrowed(times) if times > 1 else {}, others)
        except UserError as error:
            lacking[f"no control at the width of a subnet of {request.method}: {error}"] = None
    return found, list(lacking)


def _alike(request: RunRequest) -> tuple[object, ...]:
    """Requests with equal values of this are compared seed by seed."""
    return request.workload, request.nodes, request.seed, repr(sorted(request.workload_options.items()))


def _narrow(request: RunRequest, narrowed: Mapping[str, Any], others: Sequence[RunRequest]) -> Iterator[Control]:
    words = ", ".join(f"{name}={value}" for name, value in narrowed.items())
    for other in others if narrowed else ():
        if load_method(other.method, other.plugins).narrow_control:
            options = {**other.workload_options, **narrowed}
            purpose = f"{_on_nodes(other)} with {words}: the width of a subnet of {request.method}"
            yield Control(request=replace(other, workload_options=options, tuned=None), purpose=purpose)


def _on_nodes(request: RunRequest) -> str:
    return f"{request.method} on {counted(request.nodes, 'node')}"
