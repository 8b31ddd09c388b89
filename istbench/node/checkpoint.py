"""The files of a checkpoint, without pickle: tensors in safetensors, the rest in JSON, complete or absent.

Every rank writes its part, `checkpoint/<step>/rank-K.{safetensors,json}`. Rank 0 writes tensors that are the same
on all ranks once, in `shared.safetensors`, and then publishes the step (istbench/node/checkpoint_steps.py).
"""

import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import NoSpace, UserError, lacks_memory, printable
from istbench.base.files import is_full, sync, writing_whole
from istbench.fabric import FabricError
from istbench.node.checkpoint_steps import (
    LATEST,
    MANIFEST,
    Broken,
    ManifestEntry,
    Step,
    Totals,
    bare_cause,
    cell_of,
    manifest_of,
    step_of,
)
from istbench.node.digest import blocks_of
from istbench.node.weights_file import file_content

_TENSOR, _SHARED_TENSOR, _NUMBER, _STATE = "tensor:", "shared:", "number:", "state"
SHARED = "shared.safetensors"
_MOST_JSON_BYTES = 2**30
_LONGEST_REASON = 200

Keys = tuple[str, ...]
"""The keys that lead to a tensor of a state."""


@dataclass(frozen=True, kw_only=True)
class Flat:
    """A state in three parts: JSON text that names tensors, the tensors of this rank, and the shared tensors."""

    text: str
    own: Mapping[str, Tensor]
    shared: Mapping[str, Tensor]

    @classmethod
    def of(cls, state: dict[str, Any], is_shared: Callable[[Keys], bool] = lambda keys: False) -> "Flat":
        """Take `state` apart: a nested dictionary with string keys, of tensors and JSON values.

        is_shared: whether the tensor at these keys is shared.
        """
        own: dict[str, Tensor] = {}
        shared: dict[str, Tensor] = {}
        plain = _without_tensors(state, (), is_shared, own, shared)
        return cls(text=json.dumps(plain, allow_nan=False), own=own, shared=shared)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensors in (self.own, self.shared) for tensor in tensors.values())

    def copied(self) -> "Flat":
        """The same, with copies of the tensors in host memory."""
        own, shared = (
            {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
            for tensors in (self.own, self.shared)
        )
        return Flat(text=self.text, own=own, shared=shared)

    def state(self) -> dict[str, Any]:
        """Put the state together again.

        Raises:
            KeyError: the text names a tensor that is missing.
        """
        found: dict[str, Any] = _with_tensors(json.loads(self.text), self.own, self.shared)
        return found


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of the random number generators of this rank: torch's, NumPy's and Python's.

    Those of torch are of the CPU, and of `device` if it is a GPU.
    """
    name, key, *rest = cast(tuple[Any, ...], np.random.get_state())
    state = {"cpu": torch.get_rng_state(), "numpy": [name, key.tolist(), *rest], "python": random.getstate()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def seed_random_state(seed: int) -> None:
    """Start all generators of `random_state` from `seed`: a user's model, loss and metric may draw from any."""
    torch.random.default_generator.manual_seed(seed)
    if torch.cuda.is_available():  # `torch.manual_seed` describes the stack for each kind of device that is absent
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """The inverse of `random_state`.

    Raises:
        UserError: `device` is a GPU, and the rank that wrote the state had none.
    """
    if device.type == "cuda" and "cuda" not in state:
        raise UserError("it has no random state of a GPU")
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    np.random.set_state(tuple(state["numpy"]))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


@contextmanager
def random_state_kept(seed: int | None = None) -> Iterator[None]:
    """Afterwards all generators, also of GPUs, go on as if nothing had drawn. Inside they start from `seed`."""
    cpu = torch.device("cpu")
    before = random_state(cpu)
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    if seed is not None:
        seed_random_state(seed)
    try:
        yield
    finally:
        set_random_state(before, cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        elif torch.cuda.is_available():  # none was in use: they start as `torch.manual_seed` has set them
            torch.cuda.manual_seed_all(torch.initial_seed())


def part_names(rank: int, files: Collection[str] = ()) -> list[str]:
    """The names of the files from which `rank` reads its state: its own, and the shared one if it is in `files`."""
    own = [f"rank-{rank}.json", f"rank-{rank}.safetensors"]
    return [*own, SHARED] if SHARED in files else own


def write_rank(directory: Path, step: int, rank: int, state: dict[str, Any] | Flat) -> dict[str, ManifestEntry]:
    """Write the `state` of one rank to disk; returns size and SHA-256 of its files, by name.

    Leaves out the shared tensors of a `Flat`: `write_shared` writes them once for all ranks.

    Raises:
        NoSpace: the disk is full. UserError: the directory cannot be written.
    """
    flat = state if isinstance(state, Flat) else Flat.of(state)
    folder, (text, tensors) = directory / str(step), part_names(rank)
    with _writing(directory):
        folder.mkdir(parents=True, exist_ok=True)
        return {
            tensors: _write(folder / tensors, file_content(flat.own, blocks_of(flat.own))),
            text: _write(folder / text, [flat.text.encode()]),
        }


def write_shared(directory: Path, step: int, tensors: Mapping[str, Tensor]) -> ManifestEntry:
    """Write the `tensors` that all ranks share; returns size and SHA-256 of the file.

    Raises:
        NoSpace, UserError: as `write_rank`.
    """
    with _writing(directory):
        (directory / str(step)).mkdir(parents=True, exist_ok=True)
        return _write(directory / str(step) / SHARED, file_content(tensors, blocks_of(tensors)))


def shared_digest(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of the file that `write_shared` would write."""
    digest = hashlib.sha256()
    for part in file_content(tensors, blocks_of(tensors)):
        digest.update(part)
    return digest.hexdigest()


def packed(flat: Flat) -> Tensor:
    """`flat` without its shared tensors, as bytes to send; `unpacked` is the inverse."""
    # This library refuses tensors that share memory, so they are copied.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in flat.own.items()}
    return torch.frombuffer(bytearray(save(copies, {_STATE: flat.text})), dtype=torch.uint8)


def unpacked(content: Tensor) -> Flat:
    """The inverse of `packed`."""
    plain = content.cpu().numpy().tobytes()
    header = json.loads(plain[8 : 8 + int.from_bytes(plain[:8], "little")])
    return Flat(text=header["__metadata__"][_STATE], own=load(plain), shared={})


def publish(
    directory: Path,
    totals: Totals,
    files: Mapping[str, ManifestEntry],
    before: int | None = None,
    at: float | None = None,
) -> None:
    """Make `totals.step` the newest step to resume from. All its `files` must be on disk.

    Keeps step `before`, the previous whole one, and deletes all others. at: when training went on, in seconds since
    1970; the manifest has it as its time. Now by default.

    Raises:
        NoSpace, UserError: as `write_rank`.
    """
    step = step_of(directory, totals.step, manifest_of(cell_of(directory), totals, files))
    with _writing(directory):
        with writing_whole(step.folder / MANIFEST) as file:
            file.write(step.manifest)
        if at is not None:
            os.utime(step.folder / MANIFEST, (at, at))
        point_to(step)
        sync(directory.parent)
        kept = {str(totals.step), str(before)}
        for folder in directory.iterdir():
            if folder.is_dir() and not folder.is_symlink() and folder.name not in kept:
                shutil.rmtree(folder)


def point_to(step: Step) -> None:
    """Make `latest.json` name `step`: a run neither resumes from a newer step nor judges its events by one.

    Raises:
        NoSpace, UserError: as `write_rank`.
    """
    with _writing(step.directory), writing_whole(step.directory / LATEST) as file:
        file.write(step.pointer)


def read_whole(step: Step, rank: int) -> dict[str, Any]:
    """Verify the files that `rank` wrote at `step`, and read its state.

    Raises:
        Broken: a file is damaged.
    """
    step.check(part_names(rank, step.files))
    return read_rank(step.directory, step.totals.step, rank)


def read_rank(directory: Path, step: int, rank: int) -> dict[str, Any]:
    """Read the state that `rank` wrote at `step`, without its manifest.

    Raises:
        Broken: a file is missing or has no state.
    """
    folder, (text, tensors) = directory / str(step), part_names(rank)
    path = folder / text
    try:
        content = read_bytes(path, "", _MOST_JSON_BYTES)
        shared = _load(folder / SHARED) if f'"{_SHARED_TENSOR}'.encode() in content else {}
        state = decode_json(content, dict[str, Any], path.name, "")
        found: dict[str, Any] = _with_tensors(state, _load(folder / tensors), shared)
    except UserError as error:
        raise Broken(path, bare_cause(error)) from None
    except (KeyError, RecursionError):
        raise Broken(path, "it names a tensor that is missing") from None
    return found


class SavedStates(Sequence[dict[str, Any]]):
    """The parts `key` of the states that all ranks wrote at `step`, each read when it is asked for.

    Raises:
        Broken: as `read_rank`.
    """

    def __init__(self, step: Step, key: str) -> None:
        self._step, self._key = step, key
        self._read: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return self._step.ranks

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[rank] for rank in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        if place not in self._read:
            self._read[place] = read_rank(self._step.directory, self._step.totals.step, place)[self._key]
        return self._read[place]


def _load(path: Path) -> dict[str, Tensor]:
    if path.is_symlink() or not path.is_file():
        raise Broken(path, "it is not a file" if path.is_symlink() or path.exists() else "it is missing")
    try:
        return load_file(path)
    except Exception as error:  # the library raises many kinds for a broken file
        if lacks_memory(error):  # the file may be whole
            raise
        raise Broken(path, str(error)) from None


def _write(path: Path, content: Iterable[bytes | memoryview]) -> ManifestEntry:
    """Write `content` to `path` and to disk; returns its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with writing_whole(path) as file:
        for part in content:
            file.write(part)
            digest.update(part)
            size += len(part)
    return ManifestEntry(bytes=size, sha256=digest.hexdigest())


@contextmanager
def fitting(directory: Path) -> Iterator[None]:
    """Inside, a run loads a state from `directory`.

    Raises:
        UserError: the state does not fit; the message names the directory to delete.
    """
    try:
        yield
    except FabricError:
        raise
    except Exception as error:
        if lacks_memory(error):  # the checkpoint may be whole
            raise
        # A changed checkpoint may raise any error in the code that loads it.
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(
            f"checkpoint {directory} is broken (it does not fit: {printable(reason)[:_LONGEST_REASON]}); "
            f"delete {directory} to start the cell again from step 0"
        ) from None


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = printable(error.strerror or str(error))[:_LONGEST_REASON]
        kind = NoSpace if is_full(error) else UserError
        raise kind(
            f"cannot write the checkpoint {directory}: {reason}; fix this and run the same command again to resume"
        ) from None


def _without_tensors(
    value: Any, keys: Keys, is_shared: Callable[[Keys], bool], own: dict[str, Tensor], shared: dict[str, Tensor]
) -> Any:
    if isinstance(value, Tensor):
        path = "/" + "/".join(keys)
        common = is_shared(keys)
        (shared if common else own)[path] = value
        return (_SHARED_TENSOR if common else _TENSOR) + path
    if isinstance(value, float) and not math.isfinite(value):  # JSON has none
        return f"{_NUMBER}{value}"
    if isinstance(value, dict):
        return {key: _without_tensors(item, (*keys, key), is_shared, own, shared) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [
            _without_tensors(item, (*keys, str(index)), is_shared, own, shared) for index, item in enumerate(value)
        ]
    return value


def _with_tensors(value: Any, own: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Any:
    if isinstance(value, str):
        for mark, tensors in ((_TENSOR, own), (_SHARED_TENSOR, shared)):
            if value.startswith(mark):
                return tensors[value.removeprefix(mark)]
        if value.startswith(_NUMBER):
            return float(value.removeprefix(_NUMBER))
    if isinstance(value, dict):
        return {key: _with_tensors(item, own, shared) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tensors(item, own, shared) for item in value]
    return value
