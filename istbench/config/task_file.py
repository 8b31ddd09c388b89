"""A workload has a name, or on the command line its file: `--workload my_task.py`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Meta

_ENDING = ".py"

CODE_NAME = r"^[A-Za-z0-9](?!.*\.py\Z)[A-Za-z0-9_.-]{0,63}\Z"
CodeName = Annotated[str, Meta(pattern=CODE_NAME)]
"""The name of a method or a workload in a file: no path, which only the command line may give."""


def is_task_file(workload: str) -> bool:
    """Whether `workload`, as typed, is the path of a file and not a name."""
    return workload.endswith(_ENDING)


def named_with_file(workload: str, plugins: Iterable[str] = ()) -> tuple[str, tuple[str, ...]]:
    """The name of `workload`, as typed, and the files that define it: `plugins`, and its own if it is a file."""
    plugins = tuple(plugins)
    if not is_task_file(workload):
        return workload, plugins
    return Path(workload).stem, tuple(dict.fromkeys([*plugins, workload]))
