"""Checkpoints of runs that go on, kept as they are while they are brought away.

A run deletes a checkpoint as soon as it has a newer one, and that may be sooner than the files are elsewhere.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from istbench.files import hard_link

HELD = ".istbench-held"
"""The folder, in the one whose checkpoints are kept, that has hard links to their files."""
LATEST = "latest.json"
_TRIES = 5


def checkpoint_of(name: str) -> str:
    """The checkpoint directory that file `name` of a results directory lies in; empty where in none."""
    parts = PurePosixPath(name).parts
    return "/".join(parts[:3]) if len(parts) > 3 and (parts[0], parts[2]) == ("runs", "checkpoint") else ""


def checkpoints(names: Iterable[str]) -> list[str]:
    """The checkpoint directories among the files of a results directory."""
    return sorted({checkpoint_of(name) for name in names} - {""})


def hold(folder: Path, checkpoint: str) -> dict[str, Path] | None:
    """Keep the published step of a checkpoint directory as it is, until `let_go`.

    Returns:
        Where to read each of its files, by their name in `folder`; None where no step is published, or another is
        each time.
    """
    for _ in range(_TRIES):
        try:
            return _hold(folder, checkpoint)
        except FileNotFoundError:  # a newer one took its place
            continue
        except (OSError, ValueError, KeyError, TypeError):
            return None
    return None


def let_go(folder: Path) -> None:
    """Let go of what `hold` keeps in `folder`."""
    shutil.rmtree(folder / HELD, ignore_errors=True)


def _hold(folder: Path, checkpoint: str) -> dict[str, Path]:
    held = folder / HELD / checkpoint
    shutil.rmtree(held, ignore_errors=True)
    directory = folder / checkpoint
    kept = hard_link(directory / LATEST, held / LATEST)
    published = kept.read_bytes()
    found = {f"{checkpoint}/{LATEST}": kept}
    step = int(json.loads(published)["step"])
    for file in sorted((directory / str(step)).iterdir()):
        if file.is_symlink() or not file.is_file():
            continue
        found[f"{checkpoint}/{step}/{file.name}"] = hard_link(file, held / str(step) / file.name)
    # As long as it is published, nothing of it is deleted: all of it is held.
    if (directory / LATEST).read_bytes() != published:
        raise FileNotFoundError
    return found
