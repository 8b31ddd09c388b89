"""The modules of plug-ins, and the line of a plug-in in a traceback."""

import traceback
from pathlib import Path

from istbench.errors import printable

_LONGEST_REASON = 300

# Names of modules from plug-in files, and of packages with loaded methods or workloads.
_modules: set[str] = set()


def note_plugin(module: str) -> None:
    """Register `module`, or a package with all its modules, as a plug-in."""
    _modules.add(module)


def plugin_line(error: BaseException) -> str | None:
    """A line like `plug-in p.py, line 12, in loss: ValueError: no good`, for the innermost frame of a plug-in.

    None if no frame of `error` is in a plug-in.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if module in _modules or module.partition(".")[0] in _modules:
            code = frame.f_code
            place = f"plug-in {Path(code.co_filename).name}, line {line}, in {code.co_name}"
            return printable(f"{place}: {said_by(error)}")
    return None


def said_by(error: BaseException) -> str:
    """The type of `error` and the first line of its message."""
    first = str(error).strip().partition("\n")[0][:_LONGEST_REASON]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
