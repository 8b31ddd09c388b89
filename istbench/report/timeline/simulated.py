"""One round of a trace, replayed on a cluster."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from istbench.cluster.in_turns import seen_on
from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.cluster.simulator import Span, replay
from istbench.cluster.trace import KINDS, POST, STEP, Trace, round_ends
from istbench.report.timeline.timeline import NodeActivity, Timeline, Transfer, check_round, joined, make_timeline

_DIGITS = 4  # of a bandwidth in a title
# Rounds replayed before the shown one, at least, so that it equals those after it.
_WARM_ROUNDS = 3


def simulated_round(trace: Trace, profile: ClusterProfile, round_number: int) -> Timeline:
    """Round `round_number` of `trace`, from 1, replayed on a cluster after all rounds before it.

    Raises:
        UserError: if it has no such round, or cannot be replayed.
    """
    check_round(trace, round_number)
    before = trace.rounds * -(-_WARM_ROUNDS // trace.rounds) + round_number - 1
    # One round more, because a node may already send in it while another is still in this one.
    found = replay(trace, profile, rounds=before + 2, spans=True)
    ends = round_ends(found.mark_kind)
    limits = [(float(times[ends[before - 1]]), float(times[ends[before]])) for times in found.finish_s]
    own: list[list[Span]] = [[] for _ in limits]
    sent = []
    for span in found.spans or ():
        begin, end = limits[span.node]
        if span.activity == "message":
            sent.append(span)
        elif span.start < end and span.end > begin:
            own[span.node].append(span)
    activities: list[NodeActivity] = []
    for node, spans in enumerate(own):
        step_ends = found.finish_s[node, found.mark_kind == STEP]
        activities += joined(_activities(spans, limits[node]), step_ends)
    where = f"replayed on {profile.name} at {_bandwidth(profile)}"
    return make_timeline(where, round_number, limits, activities, _transfers(seen_on(trace, profile), sent))


def _bandwidth(profile: ClusterProfile) -> str:
    out, into = (bandwidth_text(rate, _DIGITS) for rate in (profile.bandwidth_out, profile.bandwidth_in))
    return out if out == into else f"{out} out, {into} in"


def _activities(spans: Iterable[Span], limits: tuple[float, float]) -> Iterator[NodeActivity]:
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        start, end = max(span.start, limits[0]), min(span.end, limits[1])
        if span.activity != "message":
            busy = end - start if span.activity == "compute" else 0.0
            yield NodeActivity(node=span.node, kind=span.activity, start=start, end=end, busy_s=busy)


def _transfers(trace: Trace, spans: Sequence[Span]) -> Iterator[Transfer]:
    kinds = [np.asarray(events["kind"][events["code"] == POST]) for events in trace.nodes]
    for span in spans:
        yield Transfer(
            operation=KINDS[kinds[span.node % len(kinds)][span.op]],
            source=span.node,
            target=span.peer,
            bytes=span.bytes,
            start=span.start,
            end=span.end,
        )
