"""The folder of a run on a host: its processes and the agent there exchange messages by files.

The environment names it for workers of torchrun. A detached job has one for each of its cells.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from istbench.base.decode import decode_json
from istbench.base.files import writing_whole
from istbench.base.options.texts import Message, message_of
from istbench.base.threads import thread_beside
from istbench.results.events import Loss, Return

FOLDER, REASON = "ISTBENCH_RUN_FOLDER", "ISTBENCH_REASON"
SAID, CELL, FAILED = "said", "cell", "failed"  # from a run: lines for the user, the name of its cell, its failure
TRAIN, GROW = "train", "grow"  # to a run: train, after it named its cell; stop, to begin again with more hosts
_POLL_S, _WATCHES_S, _LOOKS_S = 0.05, 0.1, 0.5
Status = Annotated[int, msgspec.Meta(ge=-255, le=255)]
"""The exit status of a process; below 0, the signal that ended it."""


class Failure(msgspec.Struct, frozen=True):
    """A failure that ended a run, and its exit status.

    unfit: whether each line is a problem of a host. lost: whether a worker was lost, so that the run may go on.
    """

    message: Message
    status: Status
    unfit: bool = False
    lost: bool = False


def folder() -> Path | None:
    """The folder for messages; None if no other host requested the run."""
    path = os.environ.get(FOLDER)
    return Path(path) if path else None


def speak_apart() -> None:
    """Write the standard error of rank 0 to a file that is passed on, apart from the output of torchrun."""
    where = folder()
    if where is not None and os.environ.get("RANK") == "0":
        said = os.open(where / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(said, 2)
        os.close(said)


def report_cell(cell: str) -> None:
    """Report the name of the cell, and wait until its earlier part has been copied here."""
    where = folder()
    if where is None:
        return
    write_cell(where, cell)
    while not (where / TRAIN).exists():
        time.sleep(_POLL_S)


def report_failure(message: str, status: int, *, lost: bool = False) -> bool:
    """Report the `Failure`; False if no other host requested the run."""
    where = folder()
    if where is None:
        return False
    write_failure(where, Failure(message, status, lost=lost))
    return True


@contextmanager
def growth(let_grow: Callable[[float], None]) -> Iterator[None]:
    """Inside, a thread calls `let_grow` with the time once the host that requested the run has more nodes."""
    where, over = folder(), threading.Event()

    def look() -> None:
        while where is not None and not over.wait(_LOOKS_S):
            if (where / GROW).exists():
                let_grow(time.time())

    with thread_beside(look, over):
        yield


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why another host starts the run again: after a loss, or because hosts are back."""

    loss: Loss | None = None
    back: Return | None = None


def reason() -> Loss | Return | None:
    """The loss after which another host starts the run again, or the hosts that are back; None without a reason."""
    found = decode_json(os.environ.get(REASON, "{}").encode(), Reason, REASON, "unset it")
    return found.loss or found.back


def write_cell(where: Path, cell: str) -> None:
    """Report the name of the cell of the run in folder `where`; "" if it has started and has no name yet."""
    _write(where / CELL, cell.encode())


def write_failure(where: Path, failure: Failure) -> None:
    """Report the failure of the run in folder `where`."""
    cut = msgspec.structs.replace(failure, message=message_of(failure.message))
    _write(where / FAILED, msgspec.json.encode(cut))


def _write(path: Path, content: bytes) -> None:
    with writing_whole(path) as file:
        file.write(content)


def watch(where: Path, say: Callable[[dict[str, Any]], None], lives: Callable[[], bool]) -> dict[str, Any] | None:
    """Pass on the messages of the run in folder `where` while it `lives`; returns the failure that it reported.

    The messages are lines for the user, and the name of the cell, "" before it is known.
    """
    place, cell, living = 0, None, True
    while living:
        living = lives()
        with suppress(OSError):
            if (where / SAID).exists():
                with (where / SAID).open("rb") as file:
                    file.seek(place)
                    whole = file.read().rpartition(b"\n")[0]
                for line in whole.split(b"\n") if whole else []:
                    say({"said": message_of(line.decode(errors="replace"))})
                place += len(whole) + bool(whole)
            if (found := (where / CELL).read_text()) != cell:
                say({"cell": found})
                cell = found
        time.sleep(_WATCHES_S if living else 0.0)
    with suppress(OSError, ValueError):
        failure: dict[str, Any] = json.loads((where / FAILED).read_text())
        return failure
    return None
