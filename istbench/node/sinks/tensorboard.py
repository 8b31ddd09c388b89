"""TensorBoard: an event file for each part of a run, in DIR/CELL."""

from pathlib import Path
from typing import ClassVar

from istbench.node.sinks.base import EvaluationSink, parameters, scalars
from istbench.results.events import Evaluation
from istbench.results.header import Header, Status


class TensorBoard(EvaluationSink):
    """TensorBoard event files in DIR/CELL, with the options of the run for the HParams tab."""

    packages: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def __init__(self, header: Header, where: str, resumed_at: int | None) -> None:
        super().__init__(header, where, resumed_at)
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = Event
        self._writer = EventFileWriter(str(Path(where) / header.cell))
        # TensorBoard drops all points that an earlier part of the run wrote from step 0 on.
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=self.began, step=0, session_log=start))
        options = hparams_pb(parameters(header), trial_id=header.cell, start_time_secs=self.began)
        self._writer.add_event(Event(wall_time=self.began, step=0, summary=options))

    def evaluation(self, evaluation: Evaluation) -> None:
        event = self._event(wall_time=self.at(evaluation), step=evaluation.step)
        for name, value in scalars(evaluation).items():
            event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)
        self._writer.flush()

    def close(self, status: Status) -> None:
        self._writer.close()
