"""The state of a simulation and its network, as records: compiled functions pass a few arrays quickly."""

from typing import Any, NamedTuple

import numpy as np

from istbench.base.jit import jit_part
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.simulator.program import Fields, Program, Records, records
from istbench.cluster.trace import WAIT_BEFORE, Floats, Ints

_MOST_HOPS = 5  # a link and an uplink each way, and the backplane
WAKING = 1 / 3  # of a window is acknowledged before Linux wakes the sender
_RETRANSMISSION_S = 0.2  # after a round trip and this time without messages, a connection begins slowly
_SLOW_FROM_S = 1e-3  # of latency; a slow start on a shorter link takes less time than the messages themselves
SPAN_COMPUTE, SPAN_COMMUNICATION, SPAN_IDLE, SPAN_MESSAGE = range(4)

# A line here is a kind of record; fields without a type are integers, and -1 stands for none.
_SHARED: Fields = (
    "window streams at_once looks_back flowing links_changed todo senders runnable stalled overflow "
    "backplane overhead_head overhead_tail arrival_head arrival_tail spans messages",
    "latency latency_inside message overhead last_arrival burst cores cpu_byte cpu_message next_end next_computed "
    "tcp_window slow_from",
)
_CONNECTION: Fields = (
    "source target inside between_racks queue_head queue_tail wire_head wire_tail in_window",
    "rate bytes_left bytes_after window_left window_ends since end flow_start prepared idle_since may_send",
)
_LINK: Fields = ("flows tight", "capacity capacity_left used burst burst_left since bytes")
_FLOW: Fields = ("pair fixed hops", "")
_OVERHEAD: Fields = ("pair", "until")
_ARRIVAL: Fields = ("message target counts", "at")
_SLOT: Fields = (
    "next ready missing done started sending sent received after_head in_todo",
    "posted_at",
)
_MESSAGE: Fields = ("next counts begun", "bytes ready_at waits_s")
_REPETITION: Fields = ("number open_ops", "")
_NODE: Fields = (
    "position repetition waits_for stalled collectives_posted collectives_started collectives_running marks "
    "work_head working send_head link_out link_in inside_out inside_in uplink_out uplink_in",
    "wait_since busy_until started left since speed work_until work_left work_since carrying sending receiving "
    "bytes_out bytes_in",
)
_SPAN: Fields = ("kind node op peer", "start end bytes")


class State(NamedTuple):
    """The changing state, and the parameters of the network.

    A slot is an operation of one repetition of the sample. Slots are numbered modulo the repetitions in memory.

    Attributes:
        shared: one record with the network's parameters and the lengths of the lists below.
        connection: as `Program` names them [n * world]: its ends, its priority queue, its wire, the flow on it.
        link: the outgoing links of hosts come first, then the incoming ones if full duplex. Links of nodes inside
            hosts, out and in, uplinks of racks, out and in, and the backplane follow where the profile has them.
        flow: the flowing messages. route: the links on the way of each, as many as its `hops` [connections, 5].
        overhead, arrival: messages before and after their flow, each in order of time, as ring buffers.
        slot: operations in memory; `sent` counts their messages that have begun, `sending` those that flow.
        message: of a slot, as many as may flow at once [slots * at_once].
        after_next: lists of operations after an operation. todo: collectives to check.
        sender: nodes with collectives that may send. repetition: repetitions in memory. node: by rank.
        runnable: nodes that can continue.
        spent: seconds in compute, communication and idle [n, 3]. mark_at, mark_spent: time and seconds at every
            mark.
        span: the timeline.
    """

    shared: Records
    connection: Records
    link: Records
    flow: Records
    route: Ints
    overhead: Records
    arrival: Records
    slot: Records
    message: Records
    after_next: Ints
    todo: Ints
    sender: Ints
    repetition: Records
    node: Records
    runnable: Ints
    spent: Floats
    mark_at: Floats
    mark_spent: Floats
    span: Records


class Room(NamedTuple):
    """Capacities of a state: repetitions of the sample at once, messages between leaving and arriving, marks of a
    node, and spans.
    """

    held: int
    under_way: int
    marks: int
    spans: int


def blank_state(program: Program, room: Room) -> State:
    """The state before any node starts, without a network."""
    n, slots, pairs = program.n, program.ops * room.held, program.n * program.world
    source = np.arange(pairs) // program.world
    waits = room.held * len(program.event) if np.any(program.event["owner"] >= 0) else 1
    return State(
        shared=records(
            1,
            _SHARED,
            at_once=program.at_once,
            looks_back=np.any(program.event["code"] == WAIT_BEFORE),  # to the repetition before
            next_end=np.inf,
        ),
        connection=records(
            pairs,
            _CONNECTION,
            source=source,
            target=(source + np.arange(pairs)) % program.world % n,
            queue_head=-1,
            queue_tail=-1,
            wire_head=-1,
            wire_tail=-1,
        ),
        link=records(0, _LINK),
        flow=records(pairs, _FLOW),
        route=np.zeros((pairs, _MOST_HOPS), np.int64),
        overhead=records(pairs + 1, _OVERHEAD),
        arrival=records(room.under_way, _ARRIVAL),
        slot=records(slots, _SLOT, next=-1, after_head=-1, posted_at=-1.0),
        message=records(slots * program.at_once, _MESSAGE, next=-1),
        after_next=np.full(waits, -1, np.int64),
        todo=np.zeros(slots + 1, np.int64),
        sender=np.zeros(n, np.int64),
        repetition=records(room.held, _REPETITION, number=-1),
        node=records(
            n,
            _NODE,
            repetition=-1,
            waits_for=-1,
            work_head=-1,
            working=-1,
            send_head=-1,
            speed=1.0,
            busy_until=np.inf,
            work_until=np.inf,
        ),
        runnable=np.zeros(n + 1, np.int64),
        spent=np.zeros((n, 3)),
        mark_at=np.zeros((n, room.marks)),
        mark_spent=np.zeros((n, room.marks, 3)),
        span=records(room.spans, _SPAN),
    )


def new_state(blank: State, profile: ClusterProfile, *, window: int, streams: int) -> State:
    """A copy of `blank` on the network of `profile`."""
    # By bytes: numpy copies records field by field.
    copies: dict[str, Any] = {
        name: np.ndarray(own.shape, own.dtype, bytearray(own.tobytes())) for name, own in blank._asdict().items()
    }
    state = _linked(State(**copies), profile)
    slow = profile.slow_start and profile.latency_s >= _SLOW_FROM_S
    limits = (1 - WAKING) * profile.window_bytes < 2 * profile.latency_s * state.link["capacity"].max()
    for name, value in {
        "window": window,
        "streams": streams,
        "latency": profile.latency_s,
        "latency_inside": profile.host.latency_s if profile.host is not None else profile.latency_s,
        "message": profile.message_s,
        "overhead": profile.overhead_s,
        "tcp_window": profile.window_bytes if limits else np.inf,
        "slow_from": _RETRANSMISSION_S + 2 * profile.latency_s if slow else np.inf,
        "burst": profile.burst_bytes,
        "cores": profile.cores or 0.0,
        "cpu_byte": profile.cpu_s_per_byte,
        "cpu_message": profile.cpu_s_per_message,
    }.items():
        state.shared[name] = value
    return state


def _linked(state: State, profile: ClusterProfile) -> State:
    """`state` with the links of `profile`: its nodes and connections know which of them are theirs."""
    rate: list[float] = []
    burst: list[float] = []

    def add(links: int, bits_per_second: float, burst_bytes: float = profile.burst_bytes) -> int:
        rate.extend([bits_per_second / 8] * links)
        burst.extend([burst_bytes] * links)
        return len(rate) - links

    node, connection, n = state.node, state.connection, len(state.node)
    world = len(connection) // n
    rank = np.arange(n)
    host = rank // profile.host_nodes
    node["link_out"] = node["link_in"] = add(int(host[-1]) + 1, profile.bandwidth_out) + host
    if profile.full_duplex:
        node["link_in"] = add(int(host[-1]) + 1, profile.bandwidth_in) + host
    peer_host = (rank[:, None] + np.arange(world)) % world // profile.host_nodes
    if profile.host is not None:
        node["inside_out"] = add(n, profile.host.bandwidth, 0.0) + rank
        node["inside_in"] = add(n, profile.host.bandwidth, 0.0) + rank
        connection["inside"] = (peer_host == host[:, None]).ravel()
    if profile.narrow_rack is not None:
        rack = host // profile.narrow_rack.hosts
        connection["between_racks"] = (peer_host // profile.narrow_rack.hosts != rack[:, None]).ravel()
        node["uplink_out"] = add(int(rack[-1]) + 1, profile.narrow_rack.uplink) + rack
        node["uplink_in"] = add(int(rack[-1]) + 1, profile.narrow_rack.uplink) + rack
    state.shared["backplane"] = -1 if profile.backplane is None else add(1, profile.backplane)
    return state._replace(link=records(len(rate), _LINK, capacity=rate, burst=burst, burst_left=burst))


@jit_part
def insert(program: Program, state: State, head: int, slot: int) -> int:
    """Put `slot` into the queue at `head` (-1: empty), behind slots of equal priority; returns the new head."""
    priority = program.op[slot % program.ops].priority
    before, at = -1, head
    while at >= 0 and program.op[at % program.ops].priority <= priority:
        before, at = at, state.slot[at].next
    state.slot[slot].next = at
    if before < 0:
        return slot
    state.slot[before].next = slot
    return head
