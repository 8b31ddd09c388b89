"""Which modules are a plug-in's, and the line of a plug-in that an error comes from."""

import traceback
from pathlib import Path

from istbench.errors import printable

_LONGEST_REASON = 300

# Names of modules made of plug-in files, and of packages whose methods or workloads were loaded.
_modules: set[str] = set()


def note_plugin(module: str) -> None:
    """Remember that `module`, or a package with all its modules, is a plug-in's."""
    _modules.add(module)


def plugin_line(error: BaseException) -> str | None:
    """`plug-in p.py, line 12, in loss: ValueError: no good`, of the innermost frame that is a plug-in's.

    None where `error` went through no code of a plug-in.
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
