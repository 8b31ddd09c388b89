"""Copies of a run directory: from the host that writes it to this machine, also while it trains, and back.

rsync would not do: its `--max-size` compares the size that a host announces, and a host may send more than that.
"""

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from istbench.base.decode import read_bytes
from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.files import require_no_link, sync, writing_whole
from istbench.base.options.numbers import Natural
from istbench.base.threads import thread_beside
from istbench.launch.hosts.connection import Connection, Lost, Refused, told
from istbench.launch.hosts.group import Say
from istbench.launch.hosts.push import LISTS_S, send
from istbench.launch.hosts.remote_files import CHECKPOINT, PART, beside, clear, how_far, safe, stamps
from istbench.node.checkpoint_steps import LATEST, MANIFEST, Broken, FileName, Step, find, newest_whole, step_of
from istbench.results.store import MOST_EVENTS_BYTES, OfAnotherCell, RunDirectory

Throttle = Callable[[float, int, int], None]
"""Called after each part of a file with its seconds, its bytes, and the bytes still to come; may raise to stop."""
_EVENTS, _HEADER = "events.jsonl", "run.json"
_Changed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Progress = Annotated[list[Natural], msgspec.Meta(min_length=3, max_length=3)]
_TRIES = 5
_EVERY_S = 15.0
# The copies may use the links that the run measures, so they take only this share of the time.
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.5


def at_once(_seconds: float, _size: int, _left: int) -> None:
    """A throttle that never waits."""


class _RunListing(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `list_run` of `remote_files`."""

    files: list[tuple[str, Natural, _Changed]]
    steps: list[tuple[Natural, str]]
    damaged: bool

    def steps_in(self, directory: Path) -> Iterator[Step]:
        """The published steps there, newest first, with the paths that they have in `directory`."""
        for step, manifest in self.steps:
            with suppress(Broken):
                yield step_of(directory, step, manifest.encode())


def _is_here(step: Step) -> bool:
    """Whether `step` is published in its directory, and whole."""
    with suppress(Broken, OfAnotherCell):
        for found in find(step.directory):
            if isinstance(found, Step) and found.manifest == step.manifest:
                found.check_sizes()
                return True
    return False


def fetch(first: Connection, theirs: str, here: Path, throttle: Throttle = at_once) -> None:
    """Copy the run directory `theirs` of host `first` to `here`, even while the run writes it.

    Copies the newest published step of the checkpoint and verifies it by its manifest; if it is damaged, the one
    before. If the run deletes a step during the copy, copies the next step without rests. Copies only differences,
    beside `here`, and then moves them to their place. So `here` always has one whole checkpoint, the old or the new
    one, and events at least as new.

    Raises:
        Lost, Refused: if the host fails. RunFailed: if a file cannot be written here.
        UserError: as `RunDirectory.require_no_links`.
    """
    RunDirectory(here).require_no_links()
    try:
        for attempt in range(_TRIES):
            try:
                return _fetch(first, theirs, here, throttle)
            except Refused:
                if attempt == _TRIES - 1:
                    raise
            throttle = _without_rests(throttle)
    except OSError as error:
        raise RunFailed(
            f"cannot write {error.filename or here}: {error.strerror}; the run is on {first.name}, in {theirs}; "
            "the same command with another --out brings it"
        ) from None
    finally:
        clear(here)


def _without_rests(throttle: Throttle) -> Throttle:
    return lambda _seconds, size, left: throttle(0.0, size, left)


class _PartReader:
    """Reads files of directory `theirs` on host `first` in parts, with `throttle`; `left` bytes are to come."""

    def __init__(self, first: Connection, theirs: str, throttle: Throttle, left: int) -> None:
        self._first, self._theirs, self._throttle, self._left = first, theirs, throttle, left

    def part(self, name: str, offset: int) -> bytes:
        """A part of file `name` from `offset`."""
        began = time.monotonic()
        answer = self._first.do("read", path=self._theirs, name=name, offset=offset)
        content = told(self._first.name, answer, bytes)[:PART]
        self._left = max(0, self._left - len(content))
        self._throttle(time.monotonic() - began, len(content), self._left)
        return content

    def copy(self, name: str, size: int, file: BinaryIO, offset: int = 0) -> str:
        """Write file `name` from `offset` to `file`, and return the SHA-256 of that.

        Reads no byte beyond `size`, whatever the host sends.
        """
        digest = hashlib.sha256()
        while offset < size and (content := self.part(name, offset)[: size - offset]):
            file.write(content)
            digest.update(content)
            offset += len(content)
        return digest.hexdigest()


def _fetch(first: Connection, theirs: str, here: Path, throttle: Throttle) -> None:
    listing = told(first.name, first.do("list_run", path=theirs), _RunListing)
    names = [name for name, *_ in listing.files]
    if _HEADER not in names:
        return
    clear(here)
    have = set(stamps(here))
    new = [stamp for stamp in listing.files if stamp not in have]
    steps = list(listing.steps_in(here / CHECKPOINT))
    missing = [step for step in steps[:1] if not _is_here(step)]
    sizes = sum(size for _, size, _ in new) + sum(file.bytes for step in missing for file in step.files.values())
    reader = _PartReader(first, theirs, throttle, sizes)
    step = _bring_step(reader, here, steps)
    for stamp in new:
        if not safe(stamp[0]):
            raise RunFailed(f"{first.name} names a file {stamp[0]!r}, outside of the run directory")
        _bring_file(reader, here, stamp)
    _settle(here, [name for name, *_ in new], step)
    _delete_others(here, names, steps, bool(listing.steps) or listing.damaged)


def _bring_step(reader: _PartReader, here: Path, steps: Iterable[Step]) -> Step | None:
    """Copy the newest whole one of `steps` beside `here`; None if it is here already, or none is whole."""
    for step in steps:
        if _is_here(step):
            return None
        folder = f"{CHECKPOINT}/{step.totals.step}"
        with suppress(Broken):
            for name, listed in step.files.items():
                with writing_whole(beside(here) / folder / name) as file:
                    sha256 = reader.copy(f"{folder}/{name}", listed.bytes, file)
                step.require(name, sha256)
            for named, content in (
                (f"{folder}/{MANIFEST}", step.manifest),
                (f"{CHECKPOINT}/{LATEST}", step.pointer),
            ):
                with writing_whole(beside(here) / named) as file:
                    file.write(content)
            return step
        shutil.rmtree(beside(here) / CHECKPOINT, ignore_errors=True)
    return None


def _bring_file(reader: _PartReader, here: Path, stamp: tuple[str, int, int]) -> None:
    """Copy file `stamp` beside `here`; of events, only new lines."""
    name, size, changed = stamp
    before, last = _lines(here / name) if name == _EVENTS else (b"", b"")
    content = reader.part(name, len(before)) if size else b""
    if not content.startswith(last):  # lines of another run
        before, content = b"", reader.part(name, 0)
    with writing_whole(beside(here) / name) as file:
        file.write(before + content)
        reader.copy(name, size, file, len(before + content))
    os.utime(beside(here) / name, ns=(changed, changed))


def _lines(path: Path) -> tuple[bytes, bytes]:
    """The lines of file `path` before its last whole line, and that line; nothing if no run wrote such a file."""
    content = b""
    with suppress(UserError):  # missing, a pipe, or longer than a run's
        content = read_bytes(path, "", MOST_EVENTS_BYTES)
    end = content.rfind(b"\n") + 1
    start = content.rfind(b"\n", 0, max(0, end - 1)) + 1
    return content[:start], content[start:end]


def _settle(here: Path, new: list[str], step: Step | None) -> None:
    """Move the `new` files and the new `step` from beside `here` to their places, `latest.json` last."""
    files = [*new] if step is None else [*new, f"{CHECKPOINT}/{LATEST}"]
    if step is not None:
        target = step.folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():  # damaged, or another run's
            target.rename(beside(here) / "replaced")
        (beside(here) / CHECKPOINT / target.name).replace(target)
        sync(target.parent)
    order = {_HEADER: 1, f"{CHECKPOINT}/{LATEST}": 2}
    for name in sorted(files, key=lambda name: order.get(name, 0)):
        for folder in Path(name).parents:
            require_no_link(here / folder, "choose another --out")
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (beside(here) / name).replace(here / name)
        sync((here / name).parent)


def _delete_others(here: Path, names: list[str], steps: Iterable[Step], published: bool) -> None:
    """Delete files other than `names`, and steps of the checkpoint that are not among `steps`.

    published: whether there are steps there, perhaps damaged.
    """
    kept = {f"{CHECKPOINT}/{step.totals.step}/" for step in steps if _is_here(step)}
    lost = published and not kept  # what is here may be all that is left
    for name, *_ in stamps(here):
        in_step = any(name.startswith(folder) for folder in kept) or (kept and name == f"{CHECKPOINT}/{LATEST}")
        if name not in names and not in_step and not (lost and name.startswith(f"{CHECKPOINT}/")):
            (here / name).unlink()
    for folder in sorted((path for path in here.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):
            folder.rmdir()  # where it is empty


def fetch_newer(
    first: Connection, theirs: str, here: Path, throttle: Throttle = at_once, *, again: bool = False
) -> None:
    """`fetch`, unless the run here is further than that of the host; always if it trains `again`."""
    if again or _how_far_there(first, theirs) >= how_far(here):
        fetch(first, theirs, here, throttle)


def _how_far_there(first: Connection, theirs: str) -> list[int]:
    found = first.do("how_far", path=theirs)
    if isinstance(found, str):
        raise UserError(f"{first.name}: {printable(found)}")
    return told(first.name, found, _Progress)


def bring(first: Connection, here: Path, theirs: str) -> bool:
    """Copy the run at `here` to `theirs` on host `first`, if it is further than the run there.

    Copies the newest whole step of its checkpoint. Returns whether the run was further.

    Raises:
        UserError: if no step of the local checkpoint is whole, or a run is of another cell.
        Lost, Refused: if the host fails.
    """
    if how_far(here) <= _how_far_there(first, theirs):
        return False
    step = newest_whole(here / CHECKPOINT)
    sent = (f"{CHECKPOINT}/{LATEST}", f"{CHECKPOINT}/{step.totals.step}/") if step else ()
    first.do("clear", path=theirs)
    files = [
        (here / name, size, name, changed)
        for name, size, changed in stamps(here)
        if not name.startswith(f"{CHECKPOINT}/") or name.startswith(sent)
    ]
    send(first, str(beside(Path(theirs))), files)
    first.do("place", path=theirs)
    return True


def fetch_weights(first: Connection, theirs: str, here: Path, run: RunDirectory, say: Say) -> None:
    """Move the weights in directory `theirs` of host `first` to directory `here`, as the header of `run` says then.

    Each file arrives under a temporary name; its SHA-256 is that of the host's file before it takes its place.

    Raises:
        Lost, Refused: if the host fails. RunFailed: if a file is damaged or cannot be written here.
    """
    from istbench.node.weights_file import replace_saved

    started = time.monotonic()
    listed = told(first.name, first.do("list_tree", LISTS_S, path=theirs), list[tuple[FileName, Natural, int, str]])
    reader = _PartReader(first, theirs, at_once, 0)
    try:
        here.mkdir(parents=True, exist_ok=True)
        try:
            for name, size, _, sha256 in listed:
                with writing_whole(here / f"{name}.tmp") as file:
                    arrived = reader.copy(name, size, file)
                if arrived != sha256:
                    raise RunFailed(
                        f"{first.name}: {theirs}/{name} arrived damaged; run the same command again to copy it"
                    )
            replace_saved(here, [name for name, *_ in listed])
        finally:
            for name, *_ in listed:
                (here / f"{name}.tmp").unlink(missing_ok=True)
    except OSError as error:
        raise RunFailed(
            f"cannot write {error.filename or here}: {error.strerror}; the weights are on {first.name}, in "
            f"{theirs}; copy them yourself"
        ) from None
    config = msgspec.structs.replace(run.header().config, save=str(here.resolve()))
    run.update(config=config)
    first.do("delete_tree", path=theirs)
    size = sum(size for _, size, *_ in listed)
    say(f"copied the weights to {here}: {size / 1e6:,.1f} MB in {time.monotonic() - started:.1f} s")


class _Over(Exception):  # noqa: N818
    """The run has ended."""


class Share:
    """The share of the time for copying, so that all parts arrive within `within_s` seconds of `now`.

    It follows from the rate of the parts so far, and lies between a tenth and a half.
    """

    def __init__(self, within_s: float, now: float) -> None:
        self._until = now + within_s
        self._seconds, self._bytes = 0.0, 0

    def rest_s(self, seconds: float, size: int, left: int, now: float) -> float:
        """Seconds to rest after a part of `size` bytes that took `seconds`; `left` bytes are still to come."""
        self._seconds, self._bytes = self._seconds + seconds, self._bytes + size
        if not left:
            return 0.0
        needed_s = left * self._seconds / max(1, self._bytes)
        there_s = self._until - now
        share = needed_s / there_s if there_s > 0 else _MOST_SHARE
        return seconds * (1 / min(_MOST_SHARE, max(_LEAST_SHARE, share)) - 1)


@contextmanager
def periodic_copies(
    bring: Callable[[Throttle], None], say: Callable[[str], None], checkpoint_every_s: float
) -> Iterator[None]:
    """Inside, a thread calls `bring` repeatedly; it ends after one part of a file at most.

    checkpoint_every_s: least seconds between two checkpoints; each should arrive before the next is written.
    """
    within_s, over = max(_EVERY_S, checkpoint_every_s - _EVERY_S), threading.Event()

    def throttled() -> Throttle:
        share = Share(within_s, time.monotonic())

        def throttle(seconds: float, size: int, left: int) -> None:
            if over.wait(share.rest_s(seconds, size, left, time.monotonic())):
                raise _Over

        return throttle

    def copy() -> None:
        told = False
        while not over.wait(_EVERY_S):
            try:
                bring(throttled())
                told = False
            except _Over:
                return
            except Lost:
                continue  # the thread that watches the run reports it
            except (Refused, RunFailed, UserError) as error:
                if not told and not over.is_set():
                    say(f"cannot copy the run here while it trains: {error}")
                told = True

    with thread_beside(copy, over):
        yield
