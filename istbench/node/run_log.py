"""The record of a run in training: evaluations, notes and the result, for its destinations."""

from datetime import UTC, datetime

from istbench.base.machine import host_name
from istbench.fabric import Fabric
from istbench.node.destinations import Destinations
from istbench.node.full_model import Evaluated
from istbench.node.training_state import RunTotals
from istbench.node.worker_group import Pace
from istbench.results.events import Evaluation, Note, Ready, Resume, RunPart, digest_with
from istbench.results.header import Result
from istbench.results.stats import finite
from istbench.results.store import RunDirectory


class RunLog:
    """Makes records of a run's progress and gives them to its destinations, which only rank 0 has.

    Args:
        pace: the samples of the local steps.
    """

    def __init__(self, destinations: Destinations, progress: RunTotals, fabric: Fabric, pace: Pace) -> None:
        self._destinations, self._progress, self._fabric = destinations, progress, fabric
        self._pace = pace
        self._method_noted = False
        self._last: Evaluation | None = None

    def ready(self, run: RunDirectory, began: float, loaded: float) -> None:
        """Record what a restart took, if the launcher started the run again after a loss, or on other nodes.

        began, loaded: when reading the checkpoint began and ended, in seconds since 1970.
        """
        last = next((event for event in reversed(run.events()) if isinstance(event, Resume)), None)
        change = None if last is None else last.loss or last.resize
        if change is not None:
            starting_s, loading_s = max(0.0, began - change.noticed), max(0.0, loaded - began)
            step = self._progress.totals.step
            self._destinations.record(Ready(step=step, starting_s=starting_s, loading_s=loading_s))

    def resumption(self, run: RunDirectory, damage: str) -> None:
        """Record that the run resumes from an older checkpoint, or starts anew. damage: the line on newer ones."""
        header = run.header()
        self._destinations.record(
            Resume(
                step=self._progress.totals.step or -1,
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                part=RunPart(host=header.host, threads=header.threads, versions=header.versions, git=header.git),
                damage=damage,
            )
        )

    def resized(self, before: int) -> None:
        """Record that this group goes on from a checkpoint of `before` nodes, whose steps had other samples."""
        step, nodes, each = self._progress.totals.step, self._fabric.world_size, self._pace.each
        before = each // nodes * before
        self._destinations.record(
            Note(
                message=f"from step {step} on {nodes} nodes: {each:,} samples in a step, not {before:,}; the "
                "learning rate stays, and the run ends after the same samples",
                urgent=True,
            )
        )

    def evaluation(self, found: Evaluated, train_loss: float | None) -> Evaluation:
        """Record an evaluation, with the totals up to now. Every rank must call it."""
        self._progress.count()
        totals = self._progress.totals
        evaluation = Evaluation(
            step=totals.step,
            samples=self._pace.samples_after(totals.step),
            train_s=totals.train_s,
            wall_s=totals.wall_s,
            assemble_s=found.assemble_s,
            evaluate_s=found.evaluate_s,
            bytes_sent_per_node=round(totals.bytes_sent),
            bytes_received_per_node=round(totals.bytes_received),
            train_loss=finite(train_loss),
            metrics={name: finite(value) for name, value in found.metrics.items()},
        )
        self._destinations.record(evaluation)
        totals.evaluations += 1
        totals.evaluations_sha256 = digest_with(totals.evaluations_sha256, evaluation)
        self._last = evaluation
        return evaluation

    def method_note(self, message: str) -> None:
        """Record the method's note, the first time."""
        if message and not self._method_noted:
            self._destinations.record(Note(message=message))
        self._method_noted = True

    def urgent_note(self, message: str) -> None:
        """Record `message`, if there is one, for the user to see while the run trains."""
        if message:
            self._destinations.record(Note(message=message, urgent=True))

    def no_trace(self, reason: str | None) -> None:
        """Record why the run has no trace, if there is a reason."""
        if reason and self._fabric.rank == 0:
            self._destinations.record(Note(message=f"no trace, and no replays: {reason}"))

    def result(self, weights_sha256: str, peak_bytes: int | None, nodes: int) -> None:
        """Record the result of the run, after its last evaluation. Every rank must call it.

        Args:
            peak_bytes: peak memory of training on this rank. nodes: of the cell, also those that are absent.
        """
        peak = self._fabric.maximum(peak_bytes or 0)
        hosts = self._fabric.texts.gather(host_name())
        last, totals = self._last, self._progress.totals
        if last is None:
            raise RuntimeError("a run has a result after an evaluation")
        self._destinations.finish(
            Result(
                steps=last.step,
                samples=last.samples,
                train_s=last.train_s,
                wall_s=last.wall_s,
                train_loss=last.train_loss,
                final=last.metrics,
                bytes_sent_per_node=last.bytes_sent_per_node,
                bytes_received_per_node=last.bytes_received_per_node,
                peak_memory_bytes_per_node=int(peak) or None,
                weights_sha256=weights_sha256,
                node_seconds=totals.node_seconds(nodes, hosts),
            )
        )
