"""The modules of plug-ins and task files: their lines in a traceback, and calls of their code."""

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from istbench.errors import printable

TASK_FILE = "task file"
_SLOW_S = 5.0
_LONGEST_REASON = 300

_named: set[str] = set()  # code that runs now and is named if it takes long

# Names of modules from plug-in files, and of packages with loaded methods or workloads, with the word for each.
_modules: dict[str, str] = {}


def note_plugin(module: str, word: str = "plug-in") -> None:
    """Register `module`, or a package with all its modules, as a plug-in; `word` names it in messages."""
    _modules[module] = word


def plugin_line(error: BaseException) -> str | None:
    """A line like `plug-in p.py, line 12, in loss: ValueError: no good`, for the innermost frame of a plug-in.

    None if no frame of `error` is in a plug-in.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        word = _modules.get(module) or _modules.get(module.partition(".")[0])
        if word:
            code = frame.f_code
            place = f"{word} {Path(code.co_filename).name}, line {line}, in {code.co_name}"
            return printable(f"{place}: {said_by(error)}")
    return None


def said_by(error: BaseException) -> str:
    """The type of `error` and the first line of its message."""
    first = str(error).strip().partition("\n")[0][:_LONGEST_REASON]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


SAFE_PATH = "PYTHONSAFEPATH"
SAFE_PATH_OF_OURS = "istbench"
"""The value by which a process knows that istbench set the variable, and not the user."""


@contextmanager
def no_code_from_here() -> Iterator[None]:
    """A Python that starts inside imports no file of the working directory, which may be a results folder."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = before or SAFE_PATH_OF_OURS
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run code of the user inside. Its prints go to standard error, because standard output holds results.

    what: names the code on standard error if it takes long, since it may never end. Inside code of the same name,
        nothing is named again.
    """
    if what in _named:
        with redirect_stdout(sys.stderr):
            yield
        return

    def tell() -> None:
        line = f"istbench: {what} takes more than {_SLOW_S:g} s; Ctrl-C ends it"
        print(line, file=sys.stderr, flush=True)

    timer = threading.Timer(_SLOW_S, tell)
    timer.daemon = True
    _named.add(what)
    timer.start()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        timer.cancel()
        _named.discard(what)
