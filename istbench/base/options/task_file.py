"""A workload has a name, or on the command line its file: `--workload my_task.py`."""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from istbench.base.decode import utf8_path

_ENDING = ".py"
_LONGEST = 48
_LATIN = str.maketrans(
    {"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l"}
)

CODE_NAME = r"^[A-Za-z0-9](?!.*\.py\Z)[A-Za-z0-9_.-]{0,63}\Z"
CodeName = Annotated[str, Meta(pattern=CODE_NAME)]
"""The name of a method or a workload in a file: no path, which only the command line may give."""


def is_task_file(workload: str) -> bool:
    """Whether `workload`, as typed, is the path of a file and not a name."""
    return workload.endswith(_ENDING)


def task_name(file: str | Path) -> str:
    """The name of the workload in task file `file`: the name of the file in letters and digits of ASCII, _, - and .

    A part of a hash tells apart long names, and names in other alphabets.
    """
    stem = Path(file).stem
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFC", stem).translate(_LATIN))
    text = "".join(character for character in text if not unicodedata.combining(character))
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-").removesuffix(_ENDING)
    readable += "_py" if stem.endswith(_ENDING) else ""
    whole = not any(character.isalnum() and not character.isascii() for character in text)
    if re.match(CODE_NAME, readable) and whole:
        return readable
    digest = hashlib.sha256(os.fsencode(stem)).hexdigest()[:6]
    return f"{readable[:_LONGEST] or 'task'}-{digest}"


def named_with_file(workload: str, plugins: Iterable[str] = ()) -> tuple[str, tuple[str, ...]]:
    """The name of `workload`, as typed, and the files that define it: `plugins`, and its own if it is a file.

    Raises:
        UserError: for a path that no results file can record.
    """
    plugins = tuple(plugins)
    if not is_task_file(workload):
        return workload, plugins
    utf8_path(workload, "--workload")
    return task_name(workload), tuple(dict.fromkeys([*plugins, workload]))
