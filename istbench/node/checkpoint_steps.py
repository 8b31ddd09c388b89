"""The published steps of a checkpoint directory; finds and verifies them.

`checkpoint/<step>/manifest.json` names the cell of the run, and lists every file of a step with its size and
SHA-256. It carries a SHA-256 of itself. Rank 0 writes it last, so that a step with a manifest is complete.
`checkpoint/latest.json` names the newest step and the SHA-256 of its manifest. The two newest steps stay: if one is
damaged, a run resumes from the other.

This file does not import torch, because hosts that only copy checkpoints use it too.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import UserError, printable
from istbench.base.options.numbers import Amount, Count, Duration, Natural
from istbench.results.header import NodeSeconds
from istbench.results.store import OfAnotherCell

LATEST, MANIFEST = "latest.json", "manifest.json"
_LONGEST_REASON = 200

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,40}\.(json|safetensors)$")]


class WorkerGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of nodes that trains a part of a run.

    Attributes:
        nodes: their number. step, train_s: local steps and seconds of the run before it.
        samples: taken before it, over all epochs. epoch: the first one. sample: those of that epoch before it.
    """

    nodes: Count
    step: Natural = 0
    train_s: Duration = 0.0
    samples: Natural = 0
    epoch: Natural = 0
    sample: Natural = 0


class Totals(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The progress of a run over all its resumptions; the same on every rank.

    Attributes:
        step: local steps. train_s, wall_s: seconds.
        bytes_sent, bytes_received: training traffic of the busiest rank.
        computing_s: seconds of `train_s` in which each rank did not wait for others; of all ranks that the run had.
        evaluations: their number up to this step. evaluations_sha256: their digest (`results.events.digest_with`),
            empty before the first.
        groups: the groups of nodes so far, the current one last; several with `--elastic`.
    """

    step: Natural
    train_s: Duration
    wall_s: Duration
    bytes_sent: Amount
    bytes_received: Amount
    computing_s: tuple[Duration, ...]
    evaluations: Natural
    evaluations_sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]
    groups: tuple[WorkerGroup, ...] = ()

    def node_seconds(self, ranks: int, hosts: Sequence[str]) -> tuple[NodeSeconds, ...]:
        """Split the seconds in which each of so many `ranks` was in the group into computing and waiting.

        hosts: of the ranks of the last group; the host of others is unknown.
        """
        ends = [*(group.train_s for group in self.groups[1:]), self.train_s]
        parts = [(group.nodes, end - group.train_s) for group, end in zip(self.groups, ends, strict=True)]
        found = []
        for rank in range(ranks):
            present_s = sum(seconds for nodes, seconds in parts if rank < nodes)
            computing_s = self.computing_s[rank] if rank < len(self.computing_s) else 0.0
            host, waiting_s = hosts[rank] if rank < len(hosts) else "", max(0.0, present_s - computing_s)
            found.append(NodeSeconds(rank=rank, host=host, computing_s=computing_s, waiting_s=waiting_s))
        return tuple(found)


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The entry of a file in a manifest: its size and SHA-256."""

    bytes: Natural
    sha256: Digest


class _Contents(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    cell: Annotated[str, Meta(min_length=1, max_length=200)]
    totals: Totals
    files: dict[FileName, ManifestEntry]


class _Sealed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A manifest: contents as JSON, and the SHA-256 of that text."""

    sha256: Digest
    contents: msgspec.Raw


class _Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`latest.json`: the number of a step, and the SHA-256 of its manifest file."""

    step: Natural
    manifest: Digest


class Broken(Exception):  # noqa: N818
    """A damaged file of a checkpoint, and the reason."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is broken ({printable(why)[:_LONGEST_REASON]})")


class NoneWhole(UserError):  # noqa: N818
    """No published step of checkpoint `directory` is whole; `damage` is the newest damage."""

    def __init__(self, damage: Broken | str, directory: Path) -> None:
        none_whole = f"checkpoint {damage}, and no older one is whole"
        super().__init__(f"{none_whole}; delete {directory} to start the cell again from step 0")
        self.damage = f"{none_whole}; the run starts again from step 0"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A published step.

    Attributes:
        directory: the checkpoint directory. cell: the cell of the run that wrote the step.
        totals: those of the run at this step. files: by name. manifest: content of the manifest file.
    """

    directory: Path
    cell: str
    totals: Totals
    files: Mapping[str, ManifestEntry]
    manifest: bytes

    @property
    def folder(self) -> Path:
        return self.directory / str(self.totals.step)

    @property
    def named_by(self) -> _Pointer:
        """The pointer that names this step."""
        return _Pointer(step=self.totals.step, manifest=hashlib.sha256(self.manifest).hexdigest())

    @property
    def pointer(self) -> bytes:
        """The content of `latest.json` that names this step."""
        return msgspec.json.encode(self.named_by)

    @property
    def ranks(self) -> int:
        """The number of nodes that wrote the step."""
        return sum(name.startswith("rank-") and name.endswith(".json") for name in self.files)

    def check(self, names: Iterable[str]) -> None:
        """Read the files `names`, and compare them with the manifest.

        Raises:
            Broken: the first damaged file.
        """
        for name in names:
            self._check_size(name)
            self.require(name, _sha256(self.folder / name))

    def require(self, name: str, sha256: str) -> None:
        """Compare the SHA-256 of file `name` with the manifest.

        Raises:
            Broken: they differ.
        """
        if sha256 != self.files[name].sha256:
            raise Broken(self.folder / name, "its SHA-256 differs from the manifest")

    def check_sizes(self) -> None:
        """Check that the files exist, by their sizes, without reading them.

        Raises:
            Broken: the first file that is missing, or has another size.
        """
        for name in self.files:
            self._check_size(name)

    def _check_size(self, name: str) -> None:
        path = self.folder / name
        if name not in self.files:
            raise Broken(self.folder / MANIFEST, f"it does not list {name}")
        size = _size(path)
        if size != self.files[name].bytes:
            raise Broken(path, f"it has {size:,} of {self.files[name].bytes:,} bytes")


def manifest_of(cell: str, totals: Totals, files: Mapping[str, ManifestEntry]) -> bytes:
    """The content of the manifest of a step of `cell` with `files`."""
    contents = msgspec.json.encode(_Contents(cell=cell, totals=totals, files=dict(sorted(files.items()))))
    return msgspec.json.encode(_Sealed(sha256=hashlib.sha256(contents).hexdigest(), contents=msgspec.Raw(contents)))


def step_of(directory: Path, step: int, manifest: bytes) -> Step:
    """Decode `manifest`, the content of the manifest of step number `step` in `directory`.

    Raises:
        Broken: it is no manifest, or belongs to another step.
    """
    path = directory / str(step) / MANIFEST
    try:
        sealed = decode_json(manifest, _Sealed, path.name, "")
        found = hashlib.sha256(sealed.contents).hexdigest()
        if found != sealed.sha256:
            raise Broken(path, "its content does not match its own SHA-256")
        contents = decode_json(bytes(sealed.contents), _Contents, path.name, "")
    except UserError as error:
        raise Broken(path, bare_cause(error)) from None
    if contents.totals.step != step:
        raise Broken(path, f"it is of step {contents.totals.step}")
    return Step(
        directory=directory, cell=contents.cell, totals=contents.totals, files=contents.files, manifest=manifest
    )


def find(directory: Path) -> list[Step | Broken]:
    """The steps to resume from, newest first. A damaged pointer or manifest stands in the list as `Broken`.

    Other files are not read. Empty where nothing was published.

    Raises:
        OfAnotherCell: the manifest of a step names another cell than the run directory.
    """
    found = _find(directory)
    for step in found:
        if isinstance(step, Step) and step.cell != cell_of(directory):
            raise OfAnotherCell(step.folder / MANIFEST, step.cell, cell_of(directory))
    return found


def cell_of(directory: Path) -> str:
    """The cell that a checkpoint in `directory` belongs to: its run directory has the name of the cell."""
    return directory.parent.name


def _find(directory: Path) -> list[Step | Broken]:
    steps: dict[int, Step | Broken] = {}
    for number in _numbers(directory):
        try:
            steps[number] = step_of(directory, number, _content(directory / str(number) / MANIFEST))
        except Broken as broken:
            steps[number] = broken
    pointer = _read_pointer(directory)
    ordered = sorted(steps, reverse=True)
    if isinstance(pointer, _Pointer):
        # A step beyond the pointer comes from an earlier run, or from a run that was killed while it published.
        named = steps.get(pointer.step, Broken(directory / str(pointer.step) / MANIFEST, "it is missing"))
        if isinstance(named, Broken) or named.named_by == pointer:
            return [named, *(steps[number] for number in ordered if number < pointer.step)]
        pointer = Broken(directory / LATEST, "it names another manifest")
    found: list[Step | Broken] = [steps[number] for number in ordered]
    if pointer is None:
        return [Broken(directory / LATEST, "it is missing"), *found] if found else []
    return [pointer, *found]


def newest(directory: Path) -> Step | None:
    """The newest step whose files all exist, by their sizes; None if nothing was published.

    Raises:
        NoneWhole: steps were published, but none is whole; the message names the file and the directory to delete.
        OfAnotherCell: as `find`.
    """
    return next(_whole(directory, check=Step.check_sizes), None)


def newest_whole(directory: Path) -> Step | None:
    """The newest step whose files all have their SHA-256; None if nothing was published.

    Raises:
        NoneWhole: as `newest`.
    """
    return next(_whole(directory, check=lambda step: step.check(step.files)), None)


def _whole(directory: Path, check: Callable[[Step], None]) -> Iterator[Step]:
    first = None
    for found in find(directory):
        try:
            if isinstance(found, Broken):
                raise found
            check(found)
        except Broken as broken:
            first = first or broken
            continue
        yield found
    if first is not None:
        raise NoneWhole(first, directory)


def _numbers(directory: Path) -> list[int]:
    """The numbers of steps with a manifest."""
    try:
        folders = [path for path in directory.iterdir() if re.fullmatch("0|[1-9][0-9]{0,18}", path.name)]
    except OSError:
        return []
    return [int(path.name) for path in folders if not path.is_symlink() and os.path.lexists(path / MANIFEST)]


def _read_pointer(directory: Path) -> _Pointer | Broken | None:
    path = directory / LATEST
    if not os.path.lexists(path):
        return None
    try:
        return decode_json(_content(path), _Pointer, path.name, "")
    except UserError as error:
        return Broken(path, bare_cause(error))
    except Broken as broken:
        return broken


def _content(path: Path) -> bytes:
    _size(path)
    try:
        return read_bytes(path, "")
    except UserError as error:
        raise Broken(path, bare_cause(error)) from None


def _size(path: Path) -> int:
    """The size of the regular file `path`.

    Raises:
        Broken: it is missing, or is no regular file.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise Broken(path, "it is missing") from None
    except OSError as error:
        raise Broken(path, error.strerror or str(error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise Broken(path, "it is not a file")
    return found.st_size


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Broken(path, error.strerror or str(error)) from None


def bare_cause(error: UserError) -> str:
    """The message of `error` without its way out, because the caller adds another one."""
    return str(error).rpartition("; ")[0] or str(error)
