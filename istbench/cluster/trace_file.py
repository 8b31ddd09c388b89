"""Traces on disk: .npz without pickle, checked when read."""

import json
import os
import struct
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from istbench.cluster.trace import EVENT, TRACE_VERSION, Trace, problem
from istbench.errors import UserError

_WAY_OUT = "record it again with `istbench run --again`"
# What zipfile, numpy and json raise for a file that was cut short, damaged or never a trace. Of a RuntimeError,
# damaged flags in the archive are the cause: they ask for a password or an unknown compression.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
)


def save_trace(trace: Trace, path: Path) -> None:
    """Write `trace` to `path`, whole or not at all; the same trace gives the same bytes.

    Raises:
        UserError: where it cannot be written.
    """
    header = json.dumps({"version": trace.version, "meta": dict(trace.meta)}, sort_keys=True)
    arrays: dict[str, Any] = {f"node{rank}": events for rank, events in enumerate(trace.nodes)}
    arrays["header"] = np.frombuffer(header.encode(), dtype=np.uint8)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}; free some space or choose another --out") from None


def load_trace(path: Path) -> Trace:
    """The trace in `path`.

    Raises:
        UserError: where there is none, or it is cut short, of another version, lacks nodes, or its events do
            not fit together; one line with the file and the way out.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            version = header["version"]
            if version != TRACE_VERSION:
                raise UserError(
                    f"{path} is a trace of version {version}, this istbench reads {TRACE_VERSION}; "
                    f"use the istbench that wrote it, or {_WAY_OUT}"
                )
            meta = dict(header["meta"])
            world_size = int(meta["nodes"])
            missing = next((rank for rank in range(world_size) if f"node{rank}" not in archive), None)
            if missing is not None:
                raise UserError(f"{path} lacks node {missing} of {world_size}; {_WAY_OUT}")
            nodes = tuple(archive[f"node{rank}"] for rank in range(world_size))
    except FileNotFoundError:
        raise UserError(f"no trace {path}; {_WAY_OUT}") from None
    except (PermissionError, IsADirectoryError) as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {_WAY_OUT}") from None
    except _DAMAGE:
        raise UserError(f"{path} is cut short or not a trace; {_WAY_OUT}") from None
    if any(events.dtype != EVENT for events in nodes):
        raise UserError(f"{path} does not hold events as version {TRACE_VERSION} has them; {_WAY_OUT}")
    trace = Trace(nodes=nodes, meta=meta, version=version)
    found = problem(trace)
    if found:
        raise UserError(f"{path} cannot be replayed: {found}; {_WAY_OUT}")
    return trace
