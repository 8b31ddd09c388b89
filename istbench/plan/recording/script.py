"""Runs someone's training script in this process until its steps are recorded."""

import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch.multiprocessing

from istbench.base.error_lines import said_by
from istbench.base.errors import RunFailed, UserError, clipped, printable
from istbench.base.units import counted
from istbench.cluster.script_record import LONGEST_TEXT, MOST_ARGUMENTS, ScriptRecord
from istbench.plan.recording.steps import StepRecorder

_AGAIN_S = 5.0  # until a script that did not end is told again


class _OutOfTime(BaseException):
    """Ends a script after `max_seconds`."""


def record_script(
    script: Path,
    arguments: Sequence[str],
    *,
    steps: int,
    max_seconds: float,
    done: Callable[[ScriptRecord], None],
) -> ScriptRecord:
    """Run `script` as `python SCRIPT ARGUMENTS` would, and record its first optimizer steps.

    `sys.argv` and `sys.path` stay those of the script. `done` gets the record before the script ends, which may
    take long.

    Raises:
        UserError: if the script cannot be recorded.
        RunFailed: if it fails, or ends or runs out of time before enough steps.
    """
    name = printable(str(script))
    kept = [clipped(printable(text), LONGEST_TEXT) for text in arguments[:MOST_ARGUMENTS]]
    recorder = StepRecorder(steps, done=done, script=name, arguments=kept)
    ended: BaseException | None = None
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    # Only the code of the script runs inside: its exceptions cannot be ours.
    try:
        with recorder, _spawning_here(recorder), _limited(max_seconds):
            runpy.run_path(str(script.absolute()), run_name="__main__")  # as Python sets __file__
    except BaseException as error:
        ended = error
    if recorder.error is not None:
        raise recorder.error
    if recorder.record is not None:
        return recorder.record
    if recorder.refusal:
        raise UserError(f"{name} cannot be recorded: {recorder.refusal}")
    if isinstance(ended, KeyboardInterrupt):
        raise ended
    if isinstance(ended, Exception) or (isinstance(ended, SystemExit) and ended.code not in (None, 0)):
        _fail(name, ended, recorder.taken)
    if recorder.enough:
        return recorder.finish()
    raise RunFailed(_too_few(name, recorder, max_seconds if isinstance(ended, _OutOfTime) else None))


def _too_few(name: str, recorder: StepRecorder, limit: float | None) -> str:
    """The reason why there is no record: too few optimizer steps before the end, or before a time limit."""
    taken = recorder.taken
    if not taken:
        ended = "ended" if limit is None else f"ran for {limit:g} s"
        longer = "" if limit is None else "give it longer with --max-seconds; "
        return (
            f"{name} {ended} without a step of a torch optimizer in its own process; {longer}steps of child "
            "processes and of other libraries cannot be recorded"
        )
    steps = counted(taken, "optimizer step")
    if limit is None:
        return f"{name} ended after {steps}; {recorder.shortage}"
    return f"{name} took {steps} in {limit:g} s; give it longer with --max-seconds, or a smaller model"


def _fail(name: str, error: BaseException, taken: int) -> NoReturn:
    """Show the script's own traceback, and fail."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        raise RunFailed(f"{name} ended with status {printable(str(error.code))} after {taken} optimizer steps")
    traceback.print_exception(type(error), error, _of_script(error.__traceback__), file=sys.stderr)
    raise RunFailed(f"{name} failed after {taken} optimizer steps: {printable(said_by(error))}")


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """The frames of the script and of what it calls, without those that started it."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


@contextmanager
def _spawning_here(recorder: StepRecorder) -> Iterator[None]:
    """Inside, `torch.multiprocessing.spawn` of one process runs its function in this process, under the hooks."""
    module: Any = sys.modules["torch.multiprocessing.spawn"]  # torch.multiprocessing.spawn is a function
    start = module.start_processes

    def start_here(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *others: Any, **named: Any) -> Any:
        if not join or nprocs < 1:
            return start(fn, args, nprocs, join, *others, **named)
        if nprocs > 1:
            recorder.refuse(
                f"it spawns {nprocs} processes, whose exchange would count as computing; let it spawn one"
            )
        return fn(0, *args)

    module.start_processes = torch.multiprocessing.start_processes = start_here
    try:
        yield
    finally:
        module.start_processes = torch.multiprocessing.start_processes = start


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Inside, raise `_OutOfTime` in the main thread after `seconds`, and some seconds later again."""

    def tell(_signal: int, _frame: object) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
