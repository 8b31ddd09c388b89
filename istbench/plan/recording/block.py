"""`with istbench.record(optimizer):` records the steps of a loop, for example in a notebook."""

from pathlib import Path
from types import TracebackType

from torch.optim import Optimizer

from istbench.base.decode import convert
from istbench.base.errors import RunFailed, UserError, shown
from istbench.cluster.script_record import LEAST_STEPS, ScriptRecord, save_script
from istbench.plan.recording.steps import CannotRecord, RecordingEnded, StepRecorder


class RecordedBlock:
    """Records the steps of one optimizer inside `with`. The block ends by itself after the last of them.

    Attributes:
        file: the record, for `istbench replay` and `istbench plan`. It exists after the block.
        record: its content; None before the end.
    """

    def __init__(self, optimizer: Optimizer, file: Path, steps: int) -> None:
        if not isinstance(optimizer, Optimizer):
            raise UserError(f"record takes a torch optimizer, not a {type(optimizer).__name__}")
        if convert(steps, int, lambda _: "steps") < LEAST_STEPS:
            raise UserError(f"a record takes at least {LEAST_STEPS} steps, not {shown(steps)}")
        self.file = file.absolute()  # the block may change the directory
        self.record: ScriptRecord | None = None
        self._recorder = StepRecorder(steps, only=optimizer, done=self._save, script="a block of Python")

    def _save(self, record: ScriptRecord) -> None:
        save_script(record, self.file)
        self.record = record

    def __enter__(self) -> "RecordedBlock":
        self._recorder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._recorder.__exit__()
        if self._recorder.error is not None:
            raise self._recorder.error from None
        if self.record is not None:
            return isinstance(error, RecordingEnded)
        if isinstance(error, CannotRecord):
            raise UserError(f"the block cannot be recorded: {error}") from None
        if error is not None:
            return False
        if not self._recorder.enough:
            if not self._recorder.taken:
                raise RunFailed(
                    "the block ended, and that optimizer never stepped; if it wraps another one, give the inner one"
                )
            raise RunFailed(
                f"the block ended after {self._recorder.taken} optimizer steps; {self._recorder.shortage}"
            )
        self._recorder.finish()
        if self._recorder.error is not None:
            raise self._recorder.error
        return False


def record(optimizer: Optimizer, *, file: str | Path = "record.json", steps: int = 30) -> RecordedBlock:
    """Record the first `steps` steps of `optimizer` inside `with istbench.record(optimizer):`, and write `file`.

    The block ends by itself after the last step. The file is for `istbench replay` and `istbench plan`.

    Raises:
        UserError: for another optimizer than torch's, or fewer than 8 steps; at the end of the block, if its steps
            cannot be recorded. RunFailed: after fewer steps.
    """
    if not isinstance(file, str | Path):
        raise UserError(f"file must be a text or a path, not {shown(file)}")
    return RecordedBlock(optimizer, Path(file), steps)
