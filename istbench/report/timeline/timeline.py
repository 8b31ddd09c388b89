"""One round of a trace as a timeline: activities of each node, and transfers between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from istbench.base.errors import UserError
from istbench.cluster.trace import MARK, STEP, Floats, Ints, Trace, round_ends
from istbench.report.tables.numbers import rounded
from istbench.report.tables.table import Entry, Table, column, plain, table_of

ActivityKind = Literal["compute", "communication", "idle"]
KINDS: tuple[ActivityKind, ...] = ("compute", "communication", "idle")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeActivity:
    """An activity of `node` from `start` to `end`, seconds since the beginning of the timeline.

    Attributes:
        kind: `compute`, or two kinds of waiting: `idle` until all participants have posted their part,
            then `communication`.
        busy_s: seconds of computing in a compute span; in the rest the node had no core, or evaluated.
    """

    node: int
    kind: ActivityKind
    start: float
    end: float
    busy_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """A transfer of `bytes` from node `source` to node `target`, seconds since the beginning of the timeline.

    Attributes:
        operation: one of `trace.KINDS`.
        target: None for the whole part of a node in a collective without recorded messages.
    """

    operation: str
    source: int
    target: int | None
    bytes: float
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One round of all nodes.

    Attributes:
        where: origin of the times for readers: `as recorded`, or the cluster.
        round: its number in the trace, from 1.
        limits: begin and end of the round of each node; the first begins at 0.
        activities: of each node, without gaps from begin to end, split at the ends of local steps.
        transfers: between the first begin and the last end, cut to these, by start.
    """

    where: str
    round: int
    limits: tuple[tuple[float, float], ...]
    activities: tuple[NodeActivity, ...]
    transfers: tuple[Transfer, ...]

    @property
    def nodes(self) -> int:
        return len(self.limits)

    @property
    def seconds(self) -> float:
        """Seconds from the first node's beginning to the last one's end."""
        return max(end for _, end in self.limits)

    @property
    def unit(self) -> tuple[float, str]:
        """The factor from seconds to a readable unit of its axis, and the name of the unit."""
        if self.seconds < 2e-3:
            return 1e6, "µs"
        return (1e3, "ms") if self.seconds < 2 else (1.0, "s")

    def spent(self, node: int, kind: ActivityKind) -> float:
        """Seconds of its round that `node` spent on `kind`."""
        return sum(own.seconds for own in self.activities if (own.node, own.kind) == (node, kind))


def typical_round(trace: Trace) -> int:
    """The recorded round of median length, from 1. An evaluation or a hiccup of the machine is unlikely in it.

    The first round is left out if there are others, because its beginning is not recorded.
    """
    marks = ends_of_rounds(trace)
    ends = np.max([events["at"][mark] for events, mark in zip(trace.nodes, marks, strict=True)], axis=0)
    lengths = np.diff(ends)
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2]) + 2 if len(lengths) else 1


def check_round(trace: Trace, round_number: int) -> None:
    """Refuse a round, counted from 1, that `trace` does not have.

    Raises:
        UserError: with the recorded rounds.
    """
    if not 1 <= round_number <= trace.rounds:
        there = "only round 1" if trace.rounds == 1 else f"rounds 1 to {trace.rounds}"
        raise UserError(f"round {round_number} was not recorded; the trace holds {there}: choose with --round")


def ends_of_rounds(trace: Trace) -> list[Ints]:
    """Events that end the rounds of each node [rounds]. Without marked rounds, each step is a round."""
    marks = [np.flatnonzero(events["code"] == MARK) for events in trace.nodes]
    return [own[round_ends(events["kind"][own])] for own, events in zip(marks, trace.nodes, strict=True)]


def ends_of_steps(trace: Trace, node: int, times: Floats) -> Floats:
    """The end of each local step of `node`, from the `times` of its events."""
    events = trace.nodes[node]
    ended: Floats = times[(events["code"] == MARK) & (events["kind"] == STEP)]
    return ended


def make_timeline(
    where: str,
    round_number: int,
    limits: Sequence[tuple[float, float]],
    activities: Iterable[NodeActivity],
    transfers: Iterable[Transfer],
) -> Timeline:
    """A timeline from times on one clock, cut to the round and moved to begin at 0.

    Raises:
        UserError: if the round took no time.
    """
    zero, last = min(begin for begin, _ in limits), max(end for _, end in limits)
    if not last > zero:
        raise UserError(f"round {round_number} took no time, {where}; choose another with --round")
    cut = [
        replace(transfer, start=max(transfer.start, zero) - zero, end=min(transfer.end, last) - zero)
        for transfer in transfers
        if transfer.start < last and transfer.end > zero
    ]
    return Timeline(
        where=where,
        round=round_number,
        limits=tuple((begin - zero, end - zero) for begin, end in limits),
        activities=tuple(replace(own, start=own.start - zero, end=own.end - zero) for own in activities),
        transfers=tuple(sorted(cut, key=lambda transfer: (transfer.start, transfer.source))),
    )


def joined(activities: Iterable[NodeActivity], step_ends: Floats) -> list[NodeActivity]:
    """`activities` of one node in order. Neighbours of one kind are joined unless a step ends between them."""
    result: list[NodeActivity] = []
    ends = set(step_ends.tolist())
    for own in activities:
        if own.end <= own.start:
            continue
        last = result[-1] if result else None
        if last and last.kind == own.kind and last.end not in ends:
            result[-1] = replace(last, end=own.end, busy_s=last.busy_s + own.busy_s)
        else:
            result.append(own)
    return result


_LEAST_STALLED_SHARE = 0.05


def timeline_table(timeline: Timeline, title: str, remarks: tuple[str, ...] = ()) -> Table:
    """A row for each node: its seconds of computing, exposed communication and idling, and their sum.

    remarks: lines of the footer.
    """

    def spent(kind: ActivityKind, node: int) -> Entry:
        return rounded(timeline.spent(node, kind))

    def total(node: int) -> Entry:
        begin, end = timeline.limits[node]
        return rounded(end - begin)

    return table_of(
        [
            column("node", "node", plain),
            column("compute_s", "compute s", partial(spent, "compute")),
            column("communication_s", "exposed communication s", partial(spent, "communication")),
            column("idle_s", "idle s", partial(spent, "idle")),
            column("total_s", "total s", total),
        ],
        range(timeline.nodes),
        title=f"{title}, round {timeline.round}, {timeline.where}",
        footer=(*_remarks(timeline), *remarks),
        context={"round": timeline.round, "times": timeline.where},
    )


def _remarks(timeline: Timeline) -> tuple[str, ...]:
    computing = [own for own in timeline.activities if own.kind == "compute"]
    wall, busy = sum(own.seconds for own in computing), sum(own.busy_s for own in computing)
    if wall - busy < _LEAST_STALLED_SHARE * wall:
        return ()
    return (
        f"In {1 - busy / wall:.0%} of the compute seconds a node had no core to itself, or evaluated. "
        "A replay (--cluster) leaves them out.",
    )
