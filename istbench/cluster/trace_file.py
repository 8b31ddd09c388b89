"""Traces on disk: .npz files without pickle, decoded and checked by the reader."""

import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from istbench.base.decode import decode_json, regular_file
from istbench.base.errors import UserError, shown
from istbench.base.files import write_errors, writing_whole
from istbench.base.options.numbers import MOST_NODES
from istbench.cluster.trace import EVENT, MOST_EVENTS, TRACE_VERSION, Trace, TraceMeta
from istbench.cluster.trace_problems import problem

_WAY_OUT = "record it again with `istbench run --again`"
# A trace has a file of an array for each node, and one for the header.
_MOST_FILES = MOST_NODES + 1
_LOCATOR_BYTES, _END_BYTES = 20, 22  # of the zip format
_MOST_HEADER_BYTES = _MOST_DIRECTORY_BYTES = 2**20
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': (?P<dtype>.{,1000}), 'fortran_order': False, "
    rb"'shape': \((?P<size>\d{,10}),\), \} *\n",
    re.DOTALL,
)
_MOST_BYTES = MOST_EVENTS * EVENT.itemsize + _MOST_FILES * 1024 + _MOST_HEADER_BYTES


class _Version(msgspec.Struct):
    version: int


class _Header(msgspec.Struct):
    meta: TraceMeta


def save_trace(trace: Trace, path: Path) -> None:
    """Write `trace` to `path`, completely or not at all; the same trace gives the same bytes.

    Raises:
        UserError: if the file cannot be written, or if nobody could read it.
    """
    count = sum(map(len, trace.nodes))
    if count > MOST_EVENTS:
        raise UserError(f"cannot write {path}: {count:,} events are more than the {MOST_EVENTS:,} of a trace")
    header = msgspec.json.encode({"version": trace.version, "meta": trace.meta}, order="sorted")
    arrays: dict[str, Any] = {f"node{rank}": events for rank, events in enumerate(trace.nodes)}
    arrays["header"] = np.frombuffer(header, dtype=np.uint8)
    with write_errors(path, "free some space or choose another --out"), writing_whole(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_trace(path: Path) -> Trace:
    """The trace in `path`.

    Raises:
        UserError: for a file that is missing, cut short, of another version or without some nodes, or if its
            events do not fit together; one line with the file and the way out.
    """
    with _archive(path) as archive:
        header = _array(archive.read("header.npy"), np.dtype(np.uint8)).tobytes()
        version = decode_json(header, _Version, str(path), _WAY_OUT).version
        if version != TRACE_VERSION:
            raise UserError(
                f"{path} is a trace of version {shown(version)}, this istbench reads {TRACE_VERSION}; "
                f"use the istbench that wrote it, or {_WAY_OUT}"
            )
        meta = decode_json(header, _Header, str(path), _WAY_OUT).meta
        names = set(archive.namelist())
        missing = next((rank for rank in range(meta.nodes) if f"node{rank}.npy" not in names), None)
        if missing is not None:
            raise UserError(f"{path} lacks node {missing} of {meta.nodes}; {_WAY_OUT}")
        nodes = tuple(_array(archive.read(f"node{rank}.npy"), EVENT) for rank in range(meta.nodes))
    trace = Trace(nodes=nodes, meta=meta, version=version)
    found = problem(trace)
    if found:
        raise UserError(f"{path} cannot be replayed: {found}; {_WAY_OUT}")
    return trace


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The files of arrays in `path`; unpacks nothing that is larger than any trace."""
    damaged = UserError(f"{path} is cut short or not a trace; {_WAY_OUT}")
    with regular_file(path, f"a trace, or {_WAY_OUT}", _MOST_BYTES) as descriptor:
        try:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                if not _small_directory(file):
                    raise damaged
                archive = zipfile.ZipFile(file)
                parts = archive.infolist()
                size = sum(part.file_size for part in parts)
                header = sum(part.file_size for part in parts if part.filename == "header.npy")
                if size > _MOST_BYTES or header > _MOST_HEADER_BYTES:
                    raise UserError(
                        f"{path} unpacks to {size:,} bytes, more than the {MOST_EVENTS:,} events of the largest "
                        f"trace; {_WAY_OUT}"
                    )
                yield archive
        except UserError:
            raise
        except Exception:  # zipfile and zlib raise anything for damage
            raise damaged from None


def _array(content: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array in the .npy file `content`, of one dimension.

    numpy's reader gives each header to Python's parser, which takes longer than the rest of a short trace.

    Raises:
        ValueError: if it does not hold an array of `dtype`.
    """
    found = _NPY.match(content)
    if found is None or found["dtype"] != repr(np.lib.format.dtype_to_descr(dtype)).encode():
        raise ValueError(f"not an array of {dtype}")
    return np.frombuffer(content, dtype, int(found["size"]), found.end()).copy()


def _small_directory(file: BinaryIO) -> bool:
    """Whether the list of files at the end of a .npz is as short as that of a trace. zipfile reads all of it."""
    file.seek(-_LOCATOR_BYTES - _END_BYTES, os.SEEK_END)
    locator, end = file.read(_LOCATOR_BYTES), file.read(_END_BYTES)
    large = locator.startswith(b"PK\6\7")  # another list of any size takes precedence
    return end.startswith(b"PK\5\6") and not large and int.from_bytes(end[12:16], "little") <= _MOST_DIRECTORY_BYTES
