"""Calls of the code of plug-ins and task files."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout

_SLOW_S = 5.0

_named: set[str] = set()  # code that runs now and is named if it takes long

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
    with redirect_stdout(sys.stderr), nullcontext() if what in _named else _named_if_slow(what):
        yield


@contextmanager
def _named_if_slow(what: str) -> Iterator[None]:
    line = f"istbench: {what} takes more than {_SLOW_S:g} s; Ctrl-C ends it"
    timer = threading.Timer(_SLOW_S, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    _named.add(what)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _named.discard(what)
