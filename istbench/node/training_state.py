"""The state of a run in training: its totals, and saving and restoring it through the checkpoint."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.activity import current
from istbench.base.decode import convert, path_text
from istbench.base.errors import NoSpace, UserError
from istbench.base.options.numbers import Duration, Natural
from istbench.base.options.run import RunConfig
from istbench.base.seeds import derived_seed
from istbench.fabric import Fabric
from istbench.methods.base import Reshards
from istbench.node import checkpoint
from istbench.node.checkpoint import SavedStates
from istbench.node.checkpoint_steps import Step, Totals, WorkerGroup
from istbench.node.distributed_checkpoint import DistributedCheckpoint
from istbench.node.setup import Setup
from istbench.node.worker_group import Pace, next_group

_WRITES, _GROWS = 2.0, 3.0
_FIRST_S = 60.0  # until the first checkpoint: what it costs is unknown
_LEAST_S, _MOST_S = 5.0, 3600.0
_DAY_S = 86_400.0


class OpenSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of training that a stop interrupts. The resumed run ends it as it would have ended.

    Attributes:
        end: the local step of its evaluation, an estimate if `due_s` is given.
        due_s: the train seconds at which the evaluation is due, if `--eval-every` counts seconds.
        steps: local steps trained so far. losses: the sum of their losses.
    """

    end: Natural
    steps: Natural
    losses: float
    due_s: Duration | None = None

    @classmethod
    def of(cls, end: int, due_s: float | None, steps: int, losses: float) -> "OpenSegment":
        """The segment to save. It leaves out losses that are not finite: the next loss then ends the run."""
        finite = math.isfinite(losses)
        return cls(end=end, due_s=due_s, steps=steps if finite else 0, losses=losses if finite else 0.0)


class RunTotals:
    """The totals of a run over all its resumptions, and its wall clock, which never stops."""

    def __init__(self, totals: Totals, fabric: Fabric) -> None:
        self.totals = totals
        self._fabric = fabric
        self._wall_started = time.perf_counter() - totals.wall_s

    @classmethod
    def none(cls, fabric: Fabric) -> "RunTotals":
        """The totals of a run that starts now."""
        computing_s = (0.0,) * fabric.world_size
        totals = Totals(
            step=0, train_s=0, wall_s=0, bytes_sent=0, bytes_received=0, computing_s=computing_s, evaluations=0,
            evaluations_sha256="", groups=(WorkerGroup(nodes=fabric.world_size),),
        )  # fmt: skip
        return cls(totals, fabric)

    def count(self) -> None:
        """Bring the wall seconds and the busiest rank's traffic up to date. Every rank must call it."""
        traffic = self._fabric.traffic["training"]
        self.totals.bytes_sent = self._fabric.maximum(traffic.sent)
        self.totals.bytes_received = self._fabric.maximum(traffic.received)
        self.totals.wall_s = time.perf_counter() - self._wall_started


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A training state from the checkpoint, or from the start of the run.

    Attributes:
        before: nodes of the group that wrote the checkpoint, or that starts.
        segment: the segment in which training stopped, if it stopped inside one and the group has the same size.
        damage: a line on newer checkpoints that are damaged, and on this one; empty if there are none.
    """

    progress: RunTotals
    before: int
    damage: str
    segment: OpenSegment | None = None


class TrainingState:
    """Saves and restores the training state of all ranks; every rank must call its methods alike.

    Args:
        directory: of the checkpoint.
        losses: how often the run lost a worker and started again.
        anew: whether the run starts from step 0 if no checkpoint is whole; rank 0 decides.
    """

    def __init__(
        self,
        directory: Path,
        config: RunConfig,
        setup: Setup,
        fabric: Fabric,
        losses: int,
        anew: bool,
    ) -> None:
        self._config, self._fabric = config, fabric
        self._checkpoint = DistributedCheckpoint(directory, fabric)
        self._method, self._workload = setup.method, setup.workload
        self._losses, self._anew = losses, anew
        self._saved_at = time.perf_counter()
        self._cost_s: float | None = None  # of the last checkpoint

    def restore(self) -> Restored:
        """Load the newest whole checkpoint into the method, the traffic counts and the random numbers.

        Nothing if there is no checkpoint, or `anew` and none is whole.

        Raises:
            UserError: the checkpoint is damaged, or belongs to another run.
        """
        current.begin("reading the checkpoint")
        found = self._checkpoint.read(self._reshard, anew=self._anew)
        self._saved_at = time.perf_counter()
        if found is None:
            start, damage = RunTotals.none(self._fabric), self._checkpoint.given_up
            return Restored(progress=start, before=self._config.nodes, damage=damage)
        totals, state, damage = found
        segment = None
        with checkpoint.fitting(self._checkpoint.directory):
            if not totals.groups or totals.groups[-1].step > totals.step:
                raise UserError("it has no group of nodes")
            before = totals.groups[-1]
            last = Pace.of(before, self._config, self._method).local(self._config.steps)
            if not 0 < totals.step < last:
                raise UserError(f"it is of step {totals.step}, the run ends at step {last}")
            self._method.load_state_dict(state["method"])
            if before.nodes != self._fabric.world_size:
                self._begin_group(totals)
            else:
                checkpoint.set_random_state(state["random"], self._fabric.device)
                traffic, saved = self._fabric.traffic["training"], state["traffic"]
                traffic.sent, traffic.received = int(saved["sent"]), int(saved["received"])
                if "segment" in state:
                    segment = convert(state["segment"], OpenSegment, path_text)
                    if not totals.step < segment.end <= last:
                        raise UserError(f"its segment ends at step {segment.end}")
        if damage:
            damage = f"checkpoint {damage}; the run resumes from the checkpoint of step {totals.step}"
        progress = RunTotals(totals, self._fabric)
        return Restored(progress=progress, before=before.nodes, damage=damage, segment=segment)

    def _begin_group(self, totals: Totals) -> None:
        """Begin the part of the run that this group trains, which is of another size than the last one.

        The random numbers of a rank start from its number and the step. Each node counts the most bytes so far.
        """
        fabric, config = self._fabric, self._config
        group = next_group(totals, fabric.world_size, config, self._method, self._workload)
        totals.groups += (group,)
        totals.computing_s += (0.0,) * (fabric.world_size - len(totals.computing_s))
        checkpoint.seed_random_state(derived_seed(config.seed, "node", fabric.rank, totals.step))
        traffic = fabric.traffic["training"]
        traffic.sent, traffic.received = round(totals.bytes_sent), round(totals.bytes_received)

    def _reshard(self, step: Step, rank: int) -> dict[str, Any]:
        """The state of the method for `rank`, from the files of a group of another size."""
        if not isinstance(self._method, Reshards):
            raise UserError(f"{self._method.name} cannot take over the state of another number of nodes")
        return {"method": self._method.resharded(SavedStates(step, "method"), rank)}

    def save_if_due(self, totals: Totals, grow: bool = False) -> bool:
        """Start to save if any rank finds that the time for it has passed since the last checkpoint.

        Not while a rank still writes that one. Returns whether a rank wants to `grow`: the checkpoint is published
        then, and the run ends, so that a larger group goes on from it. On a full disk the run goes on.
        """
        every_s = self._config.checkpoint_every_s
        if every_s == "auto":
            every_s = checkpoint_interval(self._cost_s, totals.wall_s, self._losses)
        due = time.perf_counter() - self._saved_at >= every_s
        wanted = self._fabric.maximum(_GROWS if grow else _WRITES if self._checkpoint.writes() else float(due))
        if wanted != _WRITES:
            self.finish()
        if wanted in (1, _GROWS):
            self._save(totals, None)
        if wanted == _GROWS:
            self.finish()
        return wanted == _GROWS and self._checkpoint.last == totals.step

    def unsaved(self) -> str:
        """A line on the last checkpoint, if the disk was too full to write it, the first time."""
        reason, self._checkpoint.unsaved = self._checkpoint.unsaved, ""
        if not reason:
            return ""
        last = self._checkpoint.last
        kept = "no checkpoint is there yet" if last is None else f"the last checkpoint is of step {last}"
        return f"{reason}; training goes on, and {kept}"

    def save_stopped(self, progress: RunTotals, segment: OpenSegment | None) -> None:
        """Save where training stopped, unless that step has a checkpoint.

        Raises:
            NoSpace: the disk is full.
        """
        if progress.totals.step not in (0, self._checkpoint.last):
            progress.count()
            self._save(progress.totals, segment)
            self.finish()
            if self._checkpoint.unsaved:
                raise NoSpace(f"{self._checkpoint.unsaved}; free some and run the same command again to resume")
        self._fabric.barrier("stopping")  # no rank ends before rank 0 has published the checkpoint

    def finish(self) -> None:
        """Wait until the started checkpoint is published."""
        self._checkpoint.finish()

    def _save(self, totals: Totals, segment: OpenSegment | None) -> None:
        current.begin("writing the checkpoint of step", totals.step)
        began = time.perf_counter()
        traffic = self._fabric.traffic["training"]
        state = {
            "method": self._method.state_dict(),
            "random": checkpoint.random_state(self._fabric.device),
            "traffic": {"sent": traffic.sent, "received": traffic.received},
        }
        if segment is not None:
            state["segment"] = msgspec.structs.asdict(segment)
        shared = self._method.is_shared
        self._checkpoint.start(totals, state, lambda keys: keys[0] == "method" and shared(keys[1:]))
        self._saved_at = time.perf_counter()
        self._cost_s = self._saved_at - began


def checkpoint_interval(cost_s: float | None, wall_s: float, losses: int) -> float:
    """The seconds between checkpoints that lose the least time: sqrt(2 x cost x time between losses) (Young, 1974).

    A run that lost nothing yet may lose a worker once in a day more than it has run.

    Args:
        cost_s: seconds for which training stands still for a checkpoint; None before the first.
    """
    if cost_s is None:
        return _FIRST_S
    between_s = (wall_s + _DAY_S) / (1 + losses)
    return min(_MOST_S, max(_LEAST_S, math.sqrt(2 * cost_s * between_s)))
