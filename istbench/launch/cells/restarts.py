"""Restarts of a run after a loss: whether it starts again, on which nodes, and what the loss cost."""

import contextlib
import time

from istbench.base.activity import Progress
from istbench.base.errors import UserError
from istbench.base.options.run import RunConfig
from istbench.launch.processes.failures import StuckAtStep, WorkerLost, cause_in
from istbench.node.checkpoint_steps import newest
from istbench.results.curves import Curve
from istbench.results.events import Loss
from istbench.results.metrics import Metric
from istbench.results.store import RunDirectory

_WITHOUT_PROGRESS = 3
BACK_S = 10.0
"""Seconds after which a lost worker of this machine counts as a node that is back."""


class Restarts:
    """The restarts of one run: at most `allowed`, and none after three losses in a row at the same step.

    An input that crashes the workers kills them there each time. Ranks may be a step apart when one of them dies.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed, self._done = allowed, 0
        self._step, self._losses = 0, 0

    def allow(self, step: int) -> bool:
        """Whether the run starts again after a loss behind local step `step`; counts the restart."""
        if abs(step - self._step) <= 1:
            self._losses += 1
        else:
            self._step, self._losses = step, 1
        if self.stuck or self._done >= self._allowed:
            return False
        self._done += 1
        return True

    @property
    def stuck(self) -> bool:
        """Whether the last losses were at the same step."""
        return self._losses >= _WITHOUT_PROGRESS

    def ended(self, failure: WorkerLost) -> WorkerLost:
        """The last `failure`, after the restarts so far."""
        if self.stuck:
            reason = f"this is loss {self._losses} in a row at step {self._step}"
            return StuckAtStep(f"{failure.what}; {reason}, so --restarts tries no more", failure.lines)
        if self._done:
            times = "once" if self._done == 1 else f"{self._done} times"
            last = failure.with_way_out(f"it was restarted {times}, as --restarts allows")
            return StuckAtStep(last.what, last.lines) if self._losses > 1 else last
        return failure


class Members:
    """The nodes of a run: at most `most`, of which it needs `least`; without `--elastic` these are equal.

    A lost node is back after `back_s` seconds. It joins when the run begins again: after another loss, or at the
    next evaluation, where the run then stops with a checkpoint.
    """

    def __init__(self, least: int, most: int, back_s: float) -> None:
        self._least, self._most, self._back_s = least, most, back_s
        self._returns: list[float] = []  # of each lost node, when it is back

    @classmethod
    def of(cls, config: RunConfig) -> "Members":
        """The nodes of a run with `config`, all present."""
        elastic = config.elastic
        return cls(config.nodes if elastic is None else elastic.least, config.nodes, BACK_S)

    @property
    def nodes(self) -> int:
        """The number of nodes that are present."""
        return self._most - len(self._returns)

    @property
    def back_at(self) -> float | None:
        """The time from which the group can grow; None if no node is lost."""
        return min(self._returns, default=None)

    def lose(self, count: int, now: float) -> None:
        """Lose `count` nodes now; none in a run whose number of nodes stays."""
        if self._least < self._most:
            self._returns += [now + self._back_s] * min(count, self.nodes)

    def seconds_short(self, now: float) -> float:
        """The seconds until enough nodes are present."""
        missing = self._least - self.nodes
        return max(0.0, sorted(self._returns)[missing - 1] - now) if missing > 0 else 0.0

    def take_back(self, now: float) -> None:
        """Let the nodes join that are back."""
        self._returns = [at for at in self._returns if at > now]


def restarted(run: RunDirectory, metric: Metric, by: str) -> Loss | None:
    """The loss after which a program outside istbench started all processes of `run` again; None without one.

    The processes that could name the lost one may be gone. Then the cause is `by`, the name of that program.
    """
    with contextlib.suppress(UserError, OSError):
        header, events = run.header(), run.events()
        if header.status != "done":
            saved = newest(run.checkpoint)
            step, wall_s = (saved.totals.step, saved.totals.wall_s) if saved else (0, 0.0)
            evaluations = Curve.from_events(events, metric).evaluations
            last_step, last_s = (evaluations[-1].step, evaluations[-1].wall_s) if evaluations else (0, 0.0)
            now = time.time()
            return Loss(
                cause=cause_in((header.error or f"{by} started all processes again").splitlines()[0]),
                noticed=now,
                noticing_s=max(0.0, now - run.events_jsonl.stat().st_mtime),
                redone_steps=max(0, last_step - step),
                redone_s=max(0.0, last_s - wall_s),
            )
    return None


def loss(failure: WorkerLost, last: Progress, saved: tuple[int, float], heard: float) -> Loss:
    """The loss that ended the workers with `failure`, noticed now.

    All times are in seconds since 1970.

    Args:
        last: the progress of the workers. saved: step and time of the checkpoint, or of the start of the workers.
        heard: the time of the last evaluation or other event.
    """
    now, (step, at) = time.time(), saved
    since = max(at, last.began)
    alive = min(now, max(since, last.at, heard))
    return Loss(
        cause=failure.what,
        noticed=now,
        noticing_s=now - alive,
        redone_steps=max(0, last.step - step),
        redone_s=max(0.0, alive - since),
    )
