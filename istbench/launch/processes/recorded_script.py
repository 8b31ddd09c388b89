"""Records someone's training script in a process of its own, and ends it with all processes that it started."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.processes import descendants
from istbench.base.scratch import scratch_folder
from istbench.cluster.script_record import ScriptRecord, load_script, save_script
from istbench.launch.processes.launcher import Signals
from istbench.launch.processes.orphans import adopt_orphans, die_with_parent, kill_descendants

_RECORD, _FAILURE = "record.json", "failure"
_GRACE_S = 10.0  # after its time, for a script to unwind and for the end of its record
_CLEANING_S = 5.0  # after its record or failure, for what it does at its exit


def record_apart(
    script: Path, arguments: Sequence[str], *, steps: int, max_seconds: float, threads: int | None = None
) -> ScriptRecord:
    """Run `script` as `python SCRIPT ARGUMENTS` would, and record its first optimizer steps.

    Its standard output goes to standard error. Its process ends some seconds after `max_seconds`, whatever it does,
    and so do all processes that it started (Linux). `threads`: of torch; None for the script's own number.

    Raises:
        UserError: if there is no such script, or it cannot be recorded.
        RunFailed: if it fails, or ends or runs out of time before enough steps.
        KeyboardInterrupt: after a signal that ends commands.
    """
    if not script.is_file():
        raise UserError(f"no script {printable(str(script))}; give a Python file that trains")
    with scratch_folder() as folder:
        options = [str(folder), str(steps), str(max_seconds), str(threads or 0)]
        began = time.monotonic()
        status = _run([sys.executable, "-P", "-m", __name__, *options, str(script), *arguments])
        if (folder / _RECORD).exists():
            return load_script(folder / _RECORD)
        if (folder / _FAILURE).exists():
            kind, _, message = (folder / _FAILURE).read_text().partition("\n")
            raise (UserError if kind == UserError.__name__ else RunFailed)(message)
    late = time.monotonic() > began + max_seconds + _GRACE_S
    raise RunFailed(f"{printable(str(script))} {_without_record(status, steps, max_seconds if late else None)}")


def _without_record(status: int, steps: int, limit: float | None) -> str:
    if limit is not None:
        return f"did not end {_GRACE_S:g} s after --max-seconds {limit:g}, so istbench ended it"
    by = f"signal {signal.Signals(-status).name}" if status < 0 else f"os._exit with status {status}"
    return (
        f"ended by {by} before {steps} optimizer steps were recorded; let it train longer, or ask for fewer --steps"
    )


def _run(words: list[str]) -> int:
    """The exit status of the command `words`. No process that it started is left."""
    spared = descendants()
    adopt_orphans()
    sys.stderr.flush()
    with Signals() as signals:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # in the process, until `record_here`
        try:
            process = subprocess.Popen(words, stdout=2)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        try:
            with signals.raised():
                return process.wait()
        finally:
            with suppress(subprocess.TimeoutExpired):  # Ctrl-C reaches the script too
                process.wait(_CLEANING_S)
            process.kill()
            process.wait()
            kill_descendants(spared)
            adopt_orphans(False)


def record_here(
    folder: str,
    steps: str,
    max_seconds: str,
    threads: str,
    script: str,
    *arguments: str,
    grace_s: float = _GRACE_S,
    cleaning_s: float = _CLEANING_S,
) -> None:
    """In the process of the script: run it, and leave its record or its failure in `folder`.

    The process ends `grace_s` after `max_seconds` at the latest, and `cleaning_s` after its record or failure.
    """
    die_with_parent()
    # Ctrl-C ends an import at once. A KeyboardInterrupt would print its traceback, or vanish in a library.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    import torch

    from istbench.plan.recording.script import record_script

    if int(threads):
        torch.set_num_threads(int(threads))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # A thread in C ends the process later, whatever keeps Python busy.
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115  (until the end)
    end_within = partial(faulthandler.dump_traceback_later, exit=True, file=nowhere)

    def done(record: ScriptRecord) -> None:
        save_script(record, Path(folder, _RECORD))
        end_within(cleaning_s)

    end_within(float(max_seconds) + grace_s)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        record_script(Path(script), arguments, steps=int(steps), max_seconds=float(max_seconds), done=done)
    except (UserError, RunFailed) as error:
        Path(folder, _FAILURE).write_text(f"{type(error).__name__}\n{error}")
    except KeyboardInterrupt:  # the parent says so
        pass
    end_within(cleaning_s)


if __name__ == "__main__":
    record_here(*sys.argv[1:])
