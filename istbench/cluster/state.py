"""The state a simulation starts from."""

import numpy as np

from istbench.cluster.network import ACTIVE, State
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.program import Floats, Ints, Program


def new_state(
    program: Program, profile: ClusterProfile, *, held: int, marks: int, spans: int, window: int, streams: int
) -> State:
    """Nobody has started. `held` repetitions of the sample have room at once; `spans` may be recorded."""
    n, slots, pairs = program.n, program.ops * held, program.n**2
    under_way = slots * (1 + n.bit_length()) + 1
    values = np.array([profile.latency_s, profile.overhead_s, *_bytes_per_second(profile), np.inf])
    return State(
        i=_ints(10, ACTIVE),
        x=values,
        window=window,
        streams=streams,
        duplex=int(profile.full_duplex),
        queue_head=_ints(pairs, -1),
        queue_tail=_ints(pairs, -1),
        wire_head=_ints(pairs, -1),
        wire_tail=_ints(pairs, -1),
        in_window=_ints(pairs),
        rate=np.zeros(pairs),
        left=np.zeros(pairs),
        since=np.zeros(pairs),
        end=np.zeros(pairs),
        flow_start=np.zeros(pairs),
        active=_ints(pairs),
        link_count=_ints(2 * n),
        link_left=np.zeros(2 * n),
        link_tight=_ints(2 * n),
        fixed=_ints(pairs),
        waiting_overhead=_ints(pairs + 1),
        overhead_until=np.zeros(pairs + 1),
        arrival_slot=_ints(under_way),
        arrival_at=np.zeros(under_way),
        next_slot=_ints(slots, -1),
        message_bytes=np.zeros(slots),
        posted_at=_floats(slots, -1.0),
        ready=_ints(slots),
        missing=_ints(slots),
        done=_ints(slots),
        started=_ints(slots),
        sending=_ints(slots),
        sent=_ints(slots),
        received=_ints(slots),
        after_head=_ints(slots, -1),
        after_next=_ints(held * len(program.code) if np.any(program.owner >= 0) else 1, -1),
        todo=_ints(slots + 1),
        in_todo=_ints(slots),
        held=_ints(held, -1),
        open_ops=_ints(held),
        position=_ints(n),
        repetition=_ints(n, -1),
        waits_for=_ints(n, -1),
        wait_since=np.zeros(n),
        busy_until=_floats(n, np.inf),
        runnable=_ints(n + 1),
        stalled=_ints(n),
        coll_posted=_ints(n),
        coll_started=_ints(n),
        coll_running=_ints(n),
        marked=_ints(n),
        spent=np.zeros((n, 3)),
        bytes_out=np.zeros(n),
        bytes_in=np.zeros(n),
        mark_at=np.zeros((n, marks)),
        mark_spent=np.zeros((n, marks, 3)),
        span_what=np.zeros((spans, 4), np.int64),
        span_time=np.zeros((spans, 3)),
    )


def _bytes_per_second(profile: ClusterProfile) -> tuple[float, float]:
    return profile.bandwidth_out / 8, profile.bandwidth_in / 8


def _ints(size: int, value: int = 0) -> Ints:
    return np.full(size, value, dtype=np.int64)


def _floats(size: int, value: float) -> Floats:
    return np.full(size, value, dtype=np.float64)
