"""A candidate: one method with its options, as a short probe has trained it.

The probe fills these in; odds, flips and the answer read them. Both halves of the room share this type, so a field
keeps its meaning.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeAlias

from istbench.cluster.trace import Trace
from istbench.results.curves import Curve

ONE_NODE = "one node"
"""The label of the candidate that trains on one node alone, as a plain loop does."""

NO_TIME = "untested: no time"
"""The reason of a candidate that could be first and that no probe has trained."""

NO_EVALUATION = "no evaluation of a probe"
"""The reason of a candidate whose probes ended before an evaluation."""

NO_TRACE = "no trace to replay"
"""The reason of a candidate without a trace, recorded or planned."""


OF_SCHEDULES = ("schedule", "warmup", "decay_at", "decay", "cosine_end")
"""Options of methods that change the learning rate in a run."""


def is_scheduled(options: Mapping[str, Any]) -> bool:
    """Whether `options` of a method choose a schedule of the learning rate, which spreads over a run's budget.

    They may also choose a part of the schedule that the workload has.
    """
    if "schedule" in options:
        return bool(options["schedule"] != "constant")
    return not options.keys().isdisjoint(OF_SCHEDULES)


@dataclass(frozen=True)
class SharedOptions:
    """The first options of all labels, such as `lr=0.001`, which a text says once and leaves out of each label."""

    words: str

    @classmethod
    def of(cls, labels: Iterable[str]) -> "SharedOptions":
        """Those of `labels`, but for `ONE_NODE`; none of fewer than two."""
        options = [label.split()[1:] for label in labels if label != ONE_NODE]
        same = takewhile(lambda words: len({*words}) == 1, zip(*options, strict=False))
        return cls(" ".join(first for first, *_ in same) if len(options) > 1 else "")

    def without(self, text: str) -> str:
        """`text`, which has labels in it, without these options."""
        return re.sub(rf" {re.escape(self.words)}(?!\w)", "", text) if self.words else text


Redealt: TypeAlias = Callable[[int], Trace]
"""The trace of a candidate on another number of nodes; raises UserError where its method cannot be dealt again."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method with its options: its probe on the nodes and the minibatches of the question.

    Attributes:
        method: the name under which replays of it are checked (`cluster.replay_checks`).
        label: as a row of a table shows it, with its options. No two candidates share a label.
        options: of the method and of computing, the values that differ from defaults.
        command: the words of the command line that trains it to the target.
        curves: of its probes by seed, each on the metric of the target. A curve may begin with step 0. The clock
            does not matter: seconds come from the replay of `trace`. Empty if no probe has an evaluation.
        trace: of one of its probes; None if no probe recorded one. Without it, the candidate has no odds.
        memory_bytes: that a node needs, by plan; None if unknown.
        baseline: people would use it without advice, such as `ddp` or `ddp` with accumulation. The answer compares
            the winner with every baseline.
        diverged: number of its seeds whose loss became no number, while another seed trained. Each is a seed that
            never reaches the target.
        learns_as: the label of the candidate whose probes gave its curves, as both make the same optimizer steps.
            Its trace is a planned one then. Empty if it has trained itself.
        stopped: the reason in a few words if successive halving ended its probe early; else empty. Its short curves
            count as they are.
        failed: the reason in a few words if it cannot train there, does not fit, or its probes failed or tell
            nothing; else empty. It is never first.
        redealt: gives its trace on another number of nodes; None if nobody can.
        nodes: that it trains on; None for those of the question.
    """

    method: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    curves: Mapping[int, Curve] = field(default_factory=dict)
    trace: Trace | None = None
    memory_bytes: int | None = None
    baseline: bool = False
    diverged: int = 0
    learns_as: str = ""
    stopped: str = ""
    failed: str = ""
    redealt: Redealt | None = None
    nodes: int | None = None

    @property
    def seeds(self) -> int:
        """Number of seeds with a curve, and of those that diverged."""
        return len(self.curves) + self.diverged

    @property
    def steps_probed(self) -> int:
        """Local steps of its longest probe; 0 without evaluations."""
        return max((curve.evaluations[-1].step for curve in self.curves.values() if curve.evaluations), default=0)

    @property
    def why_not(self) -> str:
        """The reason in a few words why it has no odds; empty if it can be first."""
        if self.failed:
            return self.failed
        if not self.steps_probed:
            return self.stopped or NO_EVALUATION
        return "" if self.trace is not None else NO_TRACE
