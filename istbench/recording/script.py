"""Runs someone's training script in this process until its steps are recorded."""

import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from istbench.cluster.script_record import LONGEST_TEXT, MOST_ARGUMENTS, ScriptRecord
from istbench.errors import RunFailed, UserError, printable
from istbench.plugin_code import said_by
from istbench.recording.steps import StepRecorder

_AGAIN_S = 5.0  # until a script that did not end is told again
_PATIENCE = 3


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

    Its standard output goes to standard error. `done` gets the record before the script ends, which may take long.

    Raises:
        UserError: if there is no such script, or it cannot be recorded.
        RunFailed: if it fails, or ends or runs out of time before enough steps.
    """
    if not script.is_file():
        raise UserError(f"no script {printable(str(script))}; give a Python file that trains")
    name = printable(str(script))
    kept = [_cut(printable(text)) for text in arguments[:MOST_ARGUMENTS]]
    recorder = StepRecorder(steps, done=done, script=name, arguments=kept)
    ended: BaseException | None = None
    with _as_main(script, arguments), _output_to_errors():
        # Only the code of the script runs inside: its exceptions cannot be ours.
        try:
            with recorder, _limited(max_seconds, name, lambda: recorder.record is not None):
                runpy.run_path(str(script), run_name="__main__")
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


def _cut(text: str) -> str:
    """`text`, shortened to the length that a record can hold."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _too_few(name: str, recorder: StepRecorder, limit: float | None) -> str:
    """The reason why there is no record: too few optimizer steps before the end, or before a time limit."""
    taken = recorder.taken
    if not taken and limit is None:
        return (
            f"{name} ended without a step of a torch optimizer in its own process; steps of child processes and of "
            "other libraries cannot be recorded"
        )
    counted = f"{taken} optimizer step{'' if taken == 1 else 's'}"
    if limit is None:
        return f"{name} ended after {counted}; {recorder.shortage}"
    return f"{name} took {counted} in {limit:g} s; give it longer with --max-seconds, or a smaller model"


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
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Inside, `sys.argv` and the search path of modules are those of a process of the script."""
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


@contextmanager
def _output_to_errors() -> Iterator[None]:
    """Inside, whatever this process and its children print goes to standard error."""
    before = sys.stdout
    before.flush()
    descriptor = _copy_of_output()
    sys.stdout = sys.__stderr__ or sys.stderr
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = before
        if descriptor is not None:
            os.dup2(descriptor, 1)
            os.close(descriptor)


def _copy_of_output() -> int | None:
    """Let descriptor 1 be standard error; returns a copy of the former one, None if there is none."""
    try:
        copy = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        return None
    return copy


@contextmanager
def _limited(seconds: float, name: str, recorded: Callable[[], bool]) -> Iterator[None]:
    """Inside, raise `_OutOfTime` after `seconds`, and some seconds later again. After that, end the process.

    Only the main thread can be told. recorded: whether the record is complete, but the script goes on.
    """
    told = 0

    def tell(_signal: int, _frame: object) -> None:
        nonlocal told
        told += 1
        if told <= _PATIENCE:
            raise _OutOfTime
        why = "it was recorded, but it does not end" if recorded() else f"it ran for {seconds:g} s"
        print(f"istbench: ended {name}, which catches every exception: {why}", file=sys.stderr, flush=True)
        os._exit(1)

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
