"""Weights of any size in safetensors files, written a block at a time, with memory for one block.

A small model is one file. A larger one is several files with an index, named as on model hubs:
`model.safetensors`, or `model-00001-of-00002.safetensors` and so on with `model.safetensors.index.json`.
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from istbench.base.decode import read_bytes
from istbench.base.errors import UserError
from istbench.base.files import kind_at, sync, writing_whole
from istbench.node.digest import content_of
from istbench.results.header import Result
from istbench.results.store import RunDirectory
from istbench.workloads.base import STORED_TYPES, ReadBlock

MOST_FILE_BYTES = 5 * 10**9
_ONE = "model.safetensors"
_INDEX = f"{_ONE}.index.json"
_OWN = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
_DIGEST = "weights_sha256"


def file_content(
    tensors: Mapping[str, Tensor], block: ReadBlock, metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The content of a file of `tensors` (meta device is enough), whose values `block` reads, a block at a time."""
    # The largest types come first, so that each tensor starts at a multiple of its element size.
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        kind, shape = STORED_TYPES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield from content_of(name, tensors[name], block)


def save_weights(
    directory: Path, tensors: Mapping[str, Tensor], block: ReadBlock, digest: str, most: int = MOST_FILE_BYTES
) -> None:
    """Write the full model into `directory`, in files of at most `most` bytes, or of one larger tensor.

    Replaces the model in `directory`. If this is interrupted, `directory` has no model that looks whole.

    Args:
        digest: SHA-256 of the weights, for the metadata of the files.

    Raises:
        UserError: the directory cannot be written.
    """
    files = _files(tensors, most)
    with _writing(directory, [*files, _INDEX]):
        directory.mkdir(parents=True, exist_ok=True)
        for name, parts in files.items():
            own, metadata = {part: tensors[part] for part in parts}, {"format": "pt", _DIGEST: digest}
            with writing_whole(directory / f"{name}.tmp") as file:
                file.writelines(file_content(own, block, metadata))
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values()), _DIGEST: digest},
            "weight_map": {part: name for name, parts in files.items() for part in parts},
        }
        with writing_whole(directory / f"{_INDEX}.tmp") as file:
            file.write(json.dumps(index, indent=2, sort_keys=True).encode() + b"\n")
        replace_saved(directory, [*files, *([_INDEX] if len(files) > 1 else [])])


def replace_saved(directory: Path, names: Sequence[str]) -> None:
    """Delete the model saved in `directory`, and rename the files `NAME.tmp` to `names`, the index last."""
    for path in sorted(directory.iterdir(), key=lambda path: path.name != _INDEX):
        if _OWN.fullmatch(path.name):
            path.unlink()
    for name in sorted(names, key=lambda name: name == _INDEX):
        (directory / f"{name}.tmp").replace(directory / name)
    sync(directory)


def require_saved(run: RunDirectory, directory: Path) -> None:
    """Refuse the finished `run` unless `directory` has its weights: the run keeps none.

    Raises:
        UserError: with the way out.
    """
    if not has_weights(directory, run.header().result):
        raise UserError(
            f"{run.path.name} is done already, and its weights are not in {directory}; "
            "--again trains it again and saves them"
        )


def has_weights(directory: Path, result: Result | None) -> bool:
    """Whether `directory` has the weights of the run that ended in `result`."""
    return result is not None and saved_digest(directory) == result.weights_sha256


def saved_digest(directory: Path) -> str | None:
    """The digest of the weights in `directory`; None if there are none, or they do not name it."""
    try:
        if (directory / _ONE).is_file():
            with safe_open(directory / _ONE, "pt") as file:
                return str((file.metadata() or {}).get(_DIGEST))
        return str(json.loads(read_bytes(directory / _INDEX, "an index of weights"))["metadata"][_DIGEST])
    except (UserError, OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None


def check_directory(directory: Path) -> None:
    """Check that weights can be saved in `directory`, without making it.

    Raises:
        UserError: they cannot.
    """
    with _writing(directory, []):
        there = next(path for path in (directory.absolute(), *directory.absolute().parents) if kind_at(path))
        if kind_at(there) != "directory":
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _files(tensors: Mapping[str, Tensor], most: int) -> dict[str, list[str]]:
    """Names of tensors by the name of their file, in order; a tensor of more than `most` bytes has its own file."""
    parts: list[list[str]] = []
    size = most
    for name, tensor in tensors.items():
        if not parts or size + tensor.nbytes > most:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += tensor.nbytes
    if len(parts) <= 1:
        return {_ONE: list(tensors)}
    return {f"model-{number:05d}-of-{len(parts):05d}.safetensors": own for number, own in enumerate(parts, 1)}


@contextmanager
def _writing(directory: Path, files: list[str]) -> Iterator[None]:
    """Inside, the caller writes `files` under temporary names; none of these stays."""
    try:
        try:
            yield
        finally:
            for name in files:
                (directory / f"{name}.tmp").unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot save weights in {directory}: {error.strerror or error}; fix this, or choose another --save"
        ) from None
