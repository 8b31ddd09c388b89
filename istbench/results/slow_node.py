"""Find the slow node of a run from the seconds that each node computed and waited, and the gain of shares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from istbench.results.header import NodeSeconds
from istbench.results.stats import median

SLOWER_BY = 0.1
"""A node is slow if it computes longer than the median node by more than this share."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The node that computes longest, and the one that computes shortest.

    Attributes:
        waited_s: seconds that the others waited for the slowest: its computing time minus their median.
        waited: the same as a share of the train seconds.
        speed: of the slowest, relative to the median of the others.
        speeds: of each node, by rank, relative to the fastest.
        saved: share of the train seconds that shares of the work by `speeds` would save.
    """

    slowest: NodeSeconds
    fastest: NodeSeconds
    waited_s: float
    waited: float
    speed: float
    speeds: tuple[float, ...]
    saved: float


def straggler(nodes: Sequence[NodeSeconds], shares: Sequence[float] = ()) -> Straggler | None:
    """The slow node of `nodes`; None if no node computes over a tenth longer than the median node.

    shares: of the work of each node, by rank; by default, and for another number of nodes, they are equal.
    """
    if len(nodes) < 2:
        return None
    slowest = max(nodes, key=lambda node: node.computing_s)
    typical = median([node.computing_s for node in nodes])
    if slowest.computing_s <= (1 + SLOWER_BY) * typical:
        return None
    work = list(shares) if len(shares) == len(nodes) else [1.0] * len(nodes)
    rates = [own / max(node.computing_s, 1e-9) for own, node in zip(work, nodes, strict=True)]
    place = nodes.index(slowest)
    waited_s = slowest.computing_s - median([node.computing_s for node in nodes if node is not slowest])
    train_s = slowest.computing_s + slowest.waiting_s
    balanced_s = math.fsum(work) / math.fsum(rates)
    return Straggler(
        slowest=slowest,
        fastest=min(nodes, key=lambda node: node.computing_s),
        waited_s=waited_s,
        waited=waited_s / train_s,
        speed=rates[place] / median(rates[:place] + rates[place + 1 :]),
        speeds=tuple(rate / max(rates) for rate in rates),
        saved=(slowest.computing_s - balanced_s) / train_s,
    )


def median_node_seconds(runs: Sequence[Sequence[NodeSeconds]]) -> tuple[NodeSeconds, ...]:
    """Medians over `runs` for each rank, with the hosts of the first run; empty without runs.

    A run that ended on another number of nodes than the first is left out.
    """
    runs = [run for run in runs if len(run) == len(runs[0])]
    if not runs:
        return ()
    return tuple(
        NodeSeconds(
            rank=first.rank,
            host=first.host,
            computing_s=median([run[place].computing_s for run in runs]),
            waiting_s=median([run[place].waiting_s for run in runs]),
        )
        for place, first in enumerate(runs[0])
    )
