"""One line for an exception of user code, or of a library that works on an object of the user.

The line names the file, the line and the function, the operation of istbench, the error and a way out:

    task file t.py, line 19, model, copying the model: TypeError: cannot pickle 'generator' object; leave it out

The exception itself keeps its type until a command, a worker or a check reports it. With ISTBENCH_TRACEBACK=1, the
whole traceback comes before the line.
"""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from istbench.base.errors import RunFailed, UserError, printable

TASK_FILE = "task file"
TRACEBACK = "ISTBENCH_TRACEBACK"
_LONGEST = 240
_NOTES, _SHOWN = "istbench_operation", "istbench_shown"
# Torch appends the whole table of its dispatcher, or advice for its own developers.
_ADVICE = re.compile(
    r"\.?\s+(This could be because the operator|If you were attempting to deepcopy|Please (check|report)).*"
)
_QUOTED = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
_OF_A_PROCESS = ("Original Traceback", "Traceback (most recent call last)")

# Names of modules from plug-in files, and of packages with loaded methods or workloads, with the word for each.
_modules: dict[str, str] = {}


def note_plugin(module: str, word: str = "plug-in") -> None:
    """Register `module`, or a package with all its modules, as a plug-in; `word` names it in messages."""
    _modules[module] = word


@contextmanager
def during(
    operation: str | Callable[[], str], place: str, way_out: str = "", *, of_libraries: bool = False
) -> Iterator[None]:
    """Note on an exception from inside that istbench did `operation` on an object from `place`.

    Args:
        operation: such as "copying the model"; empty for a plain call of the user's function.
        place: such as "task file t.py, line 19, model"; empty for an object of istbench, whose errors are bugs.
        way_out: the remedy, for an error outside the user's code.
        of_libraries: whether to leave errors alone that istbench's own code raises.

    Raises:
        UserError: in place of SystemExit.
    """
    try:
        yield
    except (UserError, RunFailed, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if place and not (of_libraries and _raised_here(error)):
            before = vars(error).get(_NOTES, ("", "", ""))
            words = operation if isinstance(operation, str) else operation()
            noted = tuple(one or other for one, other in zip(before, (words, place, way_out), strict=True))
            vars(error)[_NOTES] = noted
            if isinstance(error, SystemExit):
                raise UserError(error_line(error)) from error
        raise


def error_line(error: BaseException) -> str | None:
    """The line of `error`, if it comes from a plug-in or a task file, or was noted by `during`; otherwise None.

    Errors of istbench for users have a line of their own.
    """
    if isinstance(error, UserError | RunFailed):
        return str(error)
    operation, place, way_out = vars(error).get(_NOTES, ("", "", ""))
    own = _in_traceback(error) or _in_message(error) or (error.__cause__ and _in_traceback(error.__cause__))
    if not own and not place:
        return None
    show_traceback(error)
    parts = filter(None, [own or place, operation])
    said = f"{', '.join(parts)}: {said_by(error)}"
    return printable(f"{said.rstrip('.')}; {way_out}" if way_out and not own else said)


def reason_of(error: BaseException) -> str:
    """One line for any `error`: the message of istbench, the line of user code, or the text of the error alone."""
    return error_line(error) or said_by(error)


def said_by(error: BaseException) -> str:
    """The type of `error` and its message on one short line, without dumps and quoted tracebacks."""
    if isinstance(error, SystemExit):
        return f"calls exit({'' if error.code is None else repr(error.code)}); it should return"
    try:
        text = str(error)
    except Exception:  # a class of the user may have no text
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(line.startswith(_OF_A_PROCESS) for line in lines):
        return shortened(lines[-1])
    first = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {shortened(first)}" if first else type(error).__name__


def show_traceback(error: BaseException) -> None:
    """Print the traceback of `error` once, if the user asks for it by ISTBENCH_TRACEBACK."""
    if os.environ.get(TRACEBACK) and not vars(error).get(_SHOWN):
        vars(error)[_SHOWN] = True
        with contextlib.suppress(OSError):
            traceback.print_exception(error)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """A line of an error without torch's advice, cut at a word after `longest` characters."""
    text = _ADVICE.sub("", text)
    return text if len(text) <= longest else f"{text[:longest].rpartition(' ')[0] or text[:longest]}…"


def _in_traceback(error: BaseException) -> str:
    """The innermost frame of `error` in the user's code, in words; empty if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        word = _modules.get(module) or _modules.get(module.partition(".")[0])
        if word:
            return _place(word, frame.f_code.co_filename, line, frame.f_code.co_name)
    return ""


def _in_message(error: BaseException) -> str:
    """The innermost place in the user's code that the text of `error` quotes, as a worker of a DataLoader does."""
    files = {getattr(sys.modules.get(module), "__file__", None): word for module, word in _modules.items()}
    with contextlib.suppress(Exception):
        for quoted in reversed(list(_QUOTED.finditer(str(error)))):
            if word := files.get(quoted["file"]):
                return _place(word, quoted["file"], int(quoted["line"]), quoted["function"].strip())
    return ""


def _place(word: str, file: str, line: int, function: str) -> str:
    return f"{word} {Path(file).name}, line {line}, in {function}"


def _raised_here(error: BaseException) -> bool:
    """Whether code of istbench itself raised `error`."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).partition(".")[0] == "istbench"
