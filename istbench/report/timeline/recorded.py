"""One recorded round of a trace, on the clocks of the nodes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.trace import COMPUTE, KINDS, POST, RECEIVE, SEND, WAIT, WAIT_BEFORE, WORK, Floats, Trace
from istbench.report.timeline.timeline import (
    NodeActivity,
    Timeline,
    Transfer,
    check_round,
    ends_of_rounds,
    ends_of_steps,
    joined,
    make_timeline,
)

# Waits that end this close together are one wait for several operations.
_TOGETHER_S = 1e-4

# Name of a transfer or collective: source, target (-1 for all nodes), and number.
_Key = tuple[int, int, int]


def recorded_round(trace: Trace, round_number: int) -> Timeline:
    """Round `round_number` of `trace`, from 1, as it was recorded.

    A transfer lasts from the moment when both nodes (all, for a collective) have posted it until its receiver has
    waited for it. If a node computes and then waits, wall time beyond CPU time before the wait counts as waiting.
    Data parallel waits like this inside its backward pass. The first round begins with the computing of its first
    event, because its beginning is not recorded.

    Raises:
        UserError: if it has no such round.
    """
    check_round(trace, round_number)
    # Somebody may set back the clock of a machine.
    clocks = [np.maximum.accumulate(events["at"]) for events in trace.nodes]
    posts = [events[events["code"] == POST] for events in trace.nodes]
    keys = [[_key(node, post) for post in own] for node, own in enumerate(posts)]
    met = _when_all_posted(trace, clocks, keys)
    limits, activities = [], []
    for node, (events, clock, ends) in enumerate(zip(trace.nodes, clocks, ends_of_rounds(trace), strict=True)):
        first = int(ends[round_number - 2]) + 1 if round_number > 1 else 0
        last = int(ends[round_number - 1])
        begin = float(clock[first - 1] if first else clock[0] - events["seconds"][0])
        limits.append((begin, float(clock[last])))
        own_met = np.array([met[key] for key in keys[node]])
        found = _activities(node, events[: last + 1], clock, first, begin, own_met)
        activities += joined(found, ends_of_steps(trace, node, clock))
    waited = [_when_waited_for(events, clock) for events, clock in zip(trace.nodes, clocks, strict=True)]
    transfers = _transfers(posts, keys, met, waited)
    return make_timeline("as recorded", round_number, limits, activities, transfers)


def _key(node: int, post: Any) -> _Key:
    match, peer = int(post["match"]), int(post["peer"])
    if post["kind"] == SEND:
        return node, peer, match
    if post["kind"] == WORK:
        return node, node, match
    return (peer, node, match) if post["kind"] == RECEIVE else (-1, -1, match)


def _when_all_posted(trace: Trace, clocks: Sequence[Floats], keys: Sequence[Sequence[_Key]]) -> dict[_Key, float]:
    met: dict[_Key, float] = {}
    for events, clock, own in zip(trace.nodes, clocks, keys, strict=True):
        for key, at in zip(own, clock[events["code"] == POST].tolist(), strict=True):
            met[key] = max(met.get(key, at), at)
    return met


def _when_waited_for(events: NDArray[Any], clock: Floats) -> Floats:
    """When the node ends its wait for each operation [operations]; the end of the sample if it never waits."""
    waits = events["code"] == WAIT
    ends = np.full(np.count_nonzero(events["code"] == POST), clock[-1])
    ends[events["op"][waits]] = clock[waits]
    return ends


def _activities(
    node: int, events: NDArray[Any], clock: Floats, first: int, begin: float, met: Floats
) -> Iterator[NodeActivity]:
    """Activities from event `first` on, which began at `begin`. met: when all had posted each of its operations."""
    before = begin
    for place in range(first, len(events)):
        start, end = before, float(clock[place])
        before = end
        code = events["code"][place]
        if code == WAIT:
            all_posted = float(met[_waited_together(events, clock, place)].max())
            middle = min(max(all_posted, start), end)
            yield NodeActivity(node=node, kind="idle", start=start, end=middle)
            yield NodeActivity(node=node, kind="communication", start=middle, end=end)
            continue
        if code == WAIT_BEFORE:  # the time of its post is not recorded
            yield NodeActivity(node=node, kind="communication", start=start, end=end)
            continue
        busy = min(float(events["seconds"][place]), end - start) if code == COMPUTE else 0.0
        waits_next = place + 1 < len(events) and events["code"][place + 1] in (WAIT, WAIT_BEFORE)
        if code == COMPUTE and waits_next:
            end = before = start + busy
        yield NodeActivity(node=node, kind="compute", start=start, end=end, busy_s=busy)


def _waited_together(events: NDArray[Any], clock: Floats, place: int) -> NDArray[np.int32]:
    """The operations of the wait at `place` and of the waits that ended with it."""
    after = place + 1
    while after < len(events) and events["code"][after] == WAIT and clock[after] - clock[place] < _TOGETHER_S:
        after += 1
    ops: NDArray[np.int32] = events["op"][place:after]
    return ops


def _transfers(
    posts: Sequence[NDArray[Any]],
    keys: Sequence[Sequence[_Key]],
    met: dict[_Key, float],
    waited: Sequence[Floats],
) -> Iterator[Transfer]:
    arrived = {
        key: float(end)
        for own_posts, own_keys, ends in zip(posts, keys, waited, strict=True)
        for post, key, end in zip(own_posts, own_keys, ends, strict=True)
        if post["kind"] == RECEIVE
    }
    for node, own in enumerate(posts):
        for post, key, end in zip(own, keys[node], waited[node], strict=True):
            if post["kind"] in (RECEIVE, WORK):
                continue
            sends = post["kind"] == SEND
            yield Transfer(
                operation=KINDS[post["kind"]],
                source=node,
                target=key[1] if sends else None,
                bytes=float(post["bytes"]),
                start=met[key],
                end=max(met[key], arrived[key] if sends else float(end)),
            )
