"""Files of text that a reproduction writes."""

from collections.abc import Mapping
from pathlib import Path

from istbench.base.errors import UserError
from istbench.base.files import writing_whole


def write_texts(contents: Mapping[Path, str]) -> list[Path]:
    """Write each text to its path; returns the paths.

    Raises:
        UserError: if one cannot be written.
    """
    for path, text in contents.items():
        try:
            with writing_whole(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from None
    return list(contents)
