"""Files of text that a reproduction writes."""

from collections.abc import Mapping
from pathlib import Path

from istbench.base.files import write_errors, writing_whole


def write_texts(contents: Mapping[Path, str]) -> list[Path]:
    """Write each text to its path; returns the paths.

    Raises:
        UserError: if one cannot be written.
    """
    for path, text in contents.items():
        with write_errors(path), writing_whole(path) as file:
            file.write(text.encode())
    return list(contents)
