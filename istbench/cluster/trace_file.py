"""Traces on disk: .npz files without pickle, decoded and checked by the reader."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from istbench.cluster.trace import EVENT, TRACE_VERSION, Trace, TraceMeta
from istbench.cluster.trace_problems import problem
from istbench.door import decode_json, regular_file
from istbench.errors import UserError, shown
from istbench.files import writing_whole

_WAY_OUT = "record it again with `istbench run --again`"
_MOST_BYTES = 2**31


class _Version(msgspec.Struct):
    version: int


class _Header(msgspec.Struct):
    meta: TraceMeta


def save_trace(trace: Trace, path: Path) -> None:
    """Write `trace` to `path`, completely or not at all; the same trace gives the same bytes.

    Raises:
        UserError: if the file cannot be written.
    """
    header = msgspec.json.encode({"version": trace.version, "meta": trace.meta}, order="sorted")
    arrays: dict[str, Any] = {f"node{rank}": events for rank, events in enumerate(trace.nodes)}
    arrays["header"] = np.frombuffer(header, dtype=np.uint8)
    try:
        with writing_whole(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; free some space or choose another --out") from None


def load_trace(path: Path) -> Trace:
    """The trace in `path`.

    Raises:
        UserError: for a file that is missing, cut short, of another version or without some nodes, or if its
            events do not fit together; one line with the file and the way out.
    """
    with _archive(path) as archive:
        header = archive["header"].tobytes()
        version = decode_json(header, _Version, str(path), _WAY_OUT).version
        if version != TRACE_VERSION:
            raise UserError(
                f"{path} is a trace of version {shown(version)}, this istbench reads {TRACE_VERSION}; "
                f"use the istbench that wrote it, or {_WAY_OUT}"
            )
        meta = decode_json(header, _Header, str(path), _WAY_OUT).meta
        missing = next((rank for rank in range(meta.nodes) if f"node{rank}" not in archive), None)
        if missing is not None:
            raise UserError(f"{path} lacks node {missing} of {meta.nodes}; {_WAY_OUT}")
        nodes = tuple(archive[f"node{rank}"] for rank in range(meta.nodes))
    if any(not isinstance(events, np.ndarray) or events.dtype != EVENT for events in nodes):
        raise UserError(f"{path} does not hold events as version {TRACE_VERSION} has them; {_WAY_OUT}")
    trace = Trace(nodes=nodes, meta=meta, version=version)
    found = problem(trace)
    if found:
        raise UserError(f"{path} cannot be replayed: {found}; {_WAY_OUT}")
    return trace


@contextmanager
def _archive(path: Path) -> Iterator[Any]:
    """The arrays in `path`, at most `_MOST_BYTES` together."""
    damaged = UserError(f"{path} is cut short or not a trace; {_WAY_OUT}")
    with regular_file(path, f"a trace, or {_WAY_OUT}", _MOST_BYTES) as descriptor:
        try:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                if sum(part.file_size for part in zipfile.ZipFile(file).infolist()) > _MOST_BYTES:
                    raise damaged
                file.seek(0)
                with np.load(file, allow_pickle=False) as archive:
                    yield archive
        except UserError:
            raise
        except Exception:  # zipfile, numpy and Python's parser, which reads a header, raise anything for damage
            raise damaged from None
