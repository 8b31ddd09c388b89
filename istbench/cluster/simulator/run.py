"""Replaying a trace: the times of its events on another cluster."""

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from istbench.base.errors import UserError
from istbench.base.machine import available_bytes
from istbench.cluster.in_turns import seen_on, turns_on
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.repeated_nodes import fold, unfold
from istbench.cluster.scale import scale as scale_of
from istbench.cluster.simulator.connections import MOST_PAUSES
from istbench.cluster.simulator.program import Program, compile_trace, stops
from istbench.cluster.simulator.state import Room, State, blank_state, new_state
from istbench.cluster.trace import (
    KINDS,
    MARK,
    RECEIVE,
    SEND,
    Floats,
    Ints,
    Trace,
    round_ends,
)

_SLOTS_AT_ONCE = 100_000
_UNDER_WAY_PER_NODE = 64
_PAIR_BYTES = 3 * 256  # of two nodes' connection: the start of the simulation, and while it is copied
_MANY_PAIRS = 2**20
_WINDOW = 2  # of traces without a window
_STREAMS = {"gloo": 2, "nccl": 1}


Activity: TypeAlias = Literal["compute", "communication", "idle", "message"]
# In the order of the simulation's codes, from `state.SPAN_COMPUTE`.
ACTIVITIES: tuple[Activity, ...] = ("compute", "communication", "idle", "message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An activity of `node` from `start` to `end`, in seconds since the replay began.

    Attributes:
        activity: `compute`; waiting for operation `op`, which is `communication` or `idle` as in `Replay`; or a
            `message` of `bytes` to `peer`, until its last byte arrives.
        op: its number in the trace of that node; -1 for `compute`.
    """

    node: int
    activity: Activity
    start: float
    end: float
    op: int
    bytes: float
    peer: int


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Some rounds of a trace on a cluster.

    Attributes:
        profile: the cluster.
        compute_scale: seconds of computing on the cluster for one recorded second.
        mark_kind: of every mark [marks], `trace.STEP` or `trace.ROUND`.
        finish_s: when each node reached each mark [nodes, marks], seconds.
        compute_s, communication_s, idle_s: how each node spent that time [nodes, marks], seconds. Waiting is idle
            until all participants have posted the operation, and communication after that.
        bytes_sent, bytes_received: by each node [nodes].
        link_use: payload over capacity x `seconds` of the busiest link, uplinks and links inside hosts among them.
        seconds: until the last node ended and the last message arrived.
        messages: on the network.
        spans: the timeline by end time, if requested.
    """

    profile: ClusterProfile
    compute_scale: float
    mark_kind: NDArray[np.uint8]
    finish_s: Floats
    compute_s: Floats
    communication_s: Floats
    idle_s: Floats
    bytes_sent: Floats
    bytes_received: Floats
    link_use: float
    seconds: float
    messages: int
    spans: tuple[Span, ...] | None = None


def replay(
    trace: Trace,
    profile: ClusterProfile,
    *,
    rounds: int | None = None,
    compute_scale: float | None = None,
    window: int | None = None,
    streams: int | None = None,
    spans: bool = False,
    folded: bool = True,
) -> Replay:
    """Replay `rounds` rounds of `trace` on `profile`, repeating the sample; by default the rounds of the sample.

    Between distant nodes, its all-reduces go as istbench's do there. Spans then name operations of
    `cluster.in_turns.seen_on`. Equal inputs give equal results, bit for bit. The first long replay on a machine
    compiles for some seconds; short ones are interpreted before that.

    Args:
        compute_scale: seconds of computing on a node of speed 1 of the cluster for one recorded second, on all
            threads; by default those of `cluster.scale.scale`.
        window: messages between two nodes that the priority queue has released and can no longer reorder; by
            default the trace's, or 2.
        streams: collectives of a node that run at once, started in posted order. By default 2 with gloo, since
            torch's process group has two threads with one collective each, and 1 with NCCL. Those that go over the
            fabric's transport do not count.
        spans: keep the timeline.
        folded: simulate one of all nodes that repeat each other (`cluster.repeated_nodes`). The figures are the
            same. With `spans`, only the nodes in the trace have spans.

    Raises:
        UserError: for fewer than one round; as `cluster.scale.scale` does if `compute_scale` is None; or for nodes
            that wait in a circle.
    """
    rounds = trace.rounds if rounds is None else rounds
    window = (trace.meta.window or _WINDOW) if window is None else window
    streams = _STREAMS[profile.collectives] if streams is None else streams
    for name, count in (("rounds", rounds), ("messages in the window", window), ("streams", streams)):
        if count < 1:
            raise UserError(f"cannot replay {count} {name}; give 1 or more")
    scaled = scale_of(trace, profile) if compute_scale is None else None
    scale = compute_scale if scaled is None else scaled.compute
    if scale is None or not 0 <= scale < math.inf:
        raise UserError(f"cannot replay with a compute scale of {scale}; give a number that is not negative")
    trace = seen_on(trace, profile)
    turn = _equal_turn(profile, trace.world_size)
    if turn and folded and not spans:
        trace = trace.derived("folded", turn, functools.partial(fold, trace, turn))
    elif turn != 1:
        trace = unfold(trace)
    speeds = profile.speeds_of(len(trace.nodes)) if profile.speeds else ()
    work = scale if scaled is None else scaled.work
    far = turns_on(profile, trace.world_size)
    program = trace.derived(
        "program",
        (scale, profile.collectives, speeds, work, far),
        lambda: compile_trace(trace, scale, profile.collectives, speeds, work_scale=work, far=far),
    )
    ends = stops(trace, rounds)
    repetitions = -(-rounds // trace.rounds)
    marks = trace.derived("marks", rounds, functools.partial(_marks, trace, rounds))
    messages = _messages(program) * repetitions
    room = Room(
        held=min(repetitions, max(4, _SLOTS_AT_ONCE // max(program.ops, 1))),
        under_way=_UNDER_WAY_PER_NODE * program.n,
        marks=len(marks),
        spans=int(ends.sum()) * 2 + messages if spans else 0,
    )
    state, seconds = _simulated(trace, program, profile, ends, room, messages, window=window, streams=streams)
    _check_finished(program, state.node["waits_for"])
    alike = program.world // program.n
    sent, received = (_of_all(size, alike) for size in (state.node["bytes_out"], state.node["bytes_in"]))
    return Replay(
        profile=profile,
        compute_scale=scale,
        mark_kind=marks,
        finish_s=_of_all(state.mark_at, alike),
        compute_s=_of_all(state.mark_spent[:, :, 0], alike),
        communication_s=_of_all(state.mark_spent[:, :, 1], alike),
        idle_s=_of_all(state.mark_spent[:, :, 2], alike),
        bytes_sent=sent,
        bytes_received=received,
        link_use=float((state.link["bytes"] / state.link["capacity"]).max() / seconds) if seconds else 0.0,
        seconds=seconds,
        messages=int(state.shared["messages"][0]) * alike,
        spans=_spans(state.span[: state.shared["spans"][0]].tolist()) if spans else None,
    )


def _equal_turn(profile: ClusterProfile, world: int) -> int:
    """The fewest ranks by which a turn of `world` nodes leaves the cluster as it is; 0 if all turns change it."""
    if profile.backplane is not None or len(set(profile.speeds)) > 1:
        return 0
    rack = profile.narrow_rack
    of_racks = 0 if rack is None else rack.hosts * profile.host_nodes
    turn = next((nodes for nodes in (of_racks, profile.host_nodes) if 1 < nodes < world), 1)
    return 0 if world % turn else turn


def _of_all(values: Floats, alike: int) -> Floats:
    """`values` of the simulated nodes [nodes, ...], repeated for the nodes that are like them."""
    return np.ascontiguousarray(values if alike == 1 else np.concatenate([values] * alike))


def _simulated(
    trace: Trace,
    program: Program,
    profile: ClusterProfile,
    ends: Ints,
    room: Room,
    messages: int,
    *,
    window: int,
    streams: int,
) -> tuple[State, float]:
    """The end of the simulation. messages: on the network."""
    from istbench.cluster.simulator.simulate import simulation

    _check_room(program)
    simulate = None
    while True:
        given = room, program.at_once  # the trace alone decides all else that is read of `program`
        blank = trace.derived("blank", given, functools.partial(blank_state, program, room))
        state = new_state(blank, profile, window=window, streams=streams)
        simulate = simulate or simulation(int(ends.sum()) + messages * _windows(program, state))
        seconds = simulate(program, state, ends)
        if not state.shared["overflow"][0]:
            return state, seconds
        room = room._replace(under_way=2 * room.under_way)


def _windows(program: Program, state: State) -> int:
    """Windows of the largest message, which pauses after each; 1 where no window holds it back."""
    size = int(program.op["bytes"].max(initial=0))
    return max(1, int(min(MOST_PAUSES, size / state.shared["tcp_window"][0])))


def _check_room(program: Program) -> None:
    """Refuse nodes whose connections would not fit into memory, before the machine ends this process for it."""
    pairs = program.n * program.world
    if pairs < _MANY_PAIRS:
        return
    free, needed = available_bytes(), pairs * _PAIR_BYTES
    if 0 < free < needed:
        raise UserError(
            f"replaying {program.world} nodes, {program.n} of them unlike one another, takes about "
            f"{needed / 1e9:.0f} GB of memory, and {free / 1e9:.0f} GB are free; give fewer nodes, or full racks "
            "of equal hosts"
        )


def _messages(program: Program) -> int:
    """Messages on the network in one repetition of `program`."""
    return int(program.op["messages"].sum()) + int(np.count_nonzero(program.op["kind"] == SEND))


def _marks(trace: Trace, rounds: int) -> NDArray[np.uint8]:
    events = trace.nodes[0]
    kinds = events["kind"][events["code"] == MARK]
    whole, rest = divmod(rounds, trace.rounds)
    return np.concatenate([np.tile(kinds, whole), kinds[: round_ends(kinds)[rest - 1] + 1 if rest else 0]])


def _check_finished(program: Program, waits_for: Ints) -> None:
    stuck = np.flatnonzero(waits_for >= 0)
    if not len(stuck):
        return
    node = int(stuck[0])
    number = int(waits_for[node]) % program.ops
    kind, peer = (int(program.op[name][number]) for name in ("kind", "peer"))
    what = {SEND: f"send to node {peer}", RECEIVE: f"receive from node {peer}"}.get(kind)
    raise UserError(
        f"the trace does not replay: node {node} waits for operation {number - program.op_base[node]} "
        f"({what or KINDS[kind]}), which never ends; record it again with `istbench run --again`"
    )


def _spans(recorded: list[tuple[Any, ...]]) -> tuple[Span, ...]:
    rows = sorted(recorded, key=lambda row: (row[5], row[4], row[:4]))
    return tuple(
        Span(node=node, activity=ACTIVITIES[activity], start=start, end=end, op=op, bytes=size, peer=peer)
        for activity, node, op, peer, start, end, size in rows
    )
