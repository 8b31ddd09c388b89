"""Cells that this machine has resolved and finished: their results show without resolving again, and without torch.

The cache keeps the name of a cell by its request, and the state of all that could give it another name: the code of
istbench, torch, the data and the devices. Code of others has no such state, so its cells are always resolved.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import msgspec

import istbench
from istbench.base.cache import cache_directory
from istbench.base.decode import decode_json, encode_own, read_bytes
from istbench.base.errors import UserError
from istbench.base.files import writing_whole
from istbench.base.options.data_source import DataSource
from istbench.base.options.numbers import Nodes
from istbench.base.options.run import RunRequest
from istbench.node.registry import code_of_rule, own_modules
from istbench.results.header import CellName, Header
from istbench.results.store import RunDirectory

_MOST_FILES = 10_000  # of data; resolving looks at more
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class KnownCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cell of a request, its data and the nodes of its control.

    It counts as long as `state` is the state of everything that it depends on.
    """

    state: str
    cell: CellName
    source: DataSource
    control_nodes: Nodes | None


def finished(requests: Sequence[RunRequest], out: Path) -> list[KnownCell] | None:
    """The cells of `requests`, if all are known and their runs in `out` are done; else None."""
    cells = list[KnownCell]()
    for request, state in zip(requests, states(requests), strict=True):
        known = _read(request)
        if known is None or known.state != state:
            return None
        try:
            if not RunDirectory.of(out, known.cell).is_done():
                return None
        except UserError:  # resolving says what is wrong
            return None
        cells.append(known)
    return cells


def remember(request: RunRequest, header: Header, state: str | None) -> None:
    """Keep that the cell of `header` is the one of `request`. Without a writable cache, nothing is kept.

    state: of `states`, from when the request was resolved; None keeps nothing.
    """
    if state is not None:
        known = KnownCell(
            state=state, cell=header.cell, source=header.data_source, control_nodes=header.control_nodes
        )
        with suppress(OSError), writing_whole(_path(request)) as file:
            file.write(msgspec.json.encode(known))


def _read(request: RunRequest) -> KnownCell | None:
    try:
        path = _path(request)
        return decode_json(read_bytes(path, "a known cell"), KnownCell, str(path), "delete it")
    except (OSError, UserError, UnicodeEncodeError):  # no cell has a text that is not UTF-8
        return None


def _path(request: RunRequest) -> Path:
    place = None if request.data is None else os.fsencode(request.data.resolve())
    text = msgspec.json.encode([request, place], enc_hook=encode_own)
    return cache_directory() / "known-cells" / f"{hashlib.sha256(text).hexdigest()[:24]}.json"


def states(requests: Iterable[RunRequest]) -> Iterator[str | None]:
    """For each of `requests`, a digest of everything beside it that its cell depends on; None if that is not known.

    A run whose weights are saved, or that records trials, is looked at again.
    """
    looked = dict[Path, Sequence[object] | None]()
    for request in requests:
        own = own_modules("methods", {request.method}) + own_modules("workloads", {request.workload})
        foreign = len(own) < 2 or code_of_rule(request.method_options)
        if foreign or request.plugins or request.save is not None or request.tuned is not None:
            yield None
            continue
        # Without data of the user, prepared or downloaded data lies beside other data of the workload in the cache.
        place = request.data or cache_directory() / request.workload
        if place not in looked:
            looked[place] = _entries(place, deep=request.data is not None)
        devices = [*map(os.path.exists, _DEVICES), *map(os.environ.get, _DEVICE_VARIABLES)]
        state = repr((_code(), looked[place], devices))
        yield None if looked[place] is None else hashlib.sha256(state.encode()).hexdigest()


@cache  # of what this process imports
def _code() -> tuple[object, ...]:
    package = Path(istbench.__file__).parent
    sources = sorted((str(path), *_looks(path)) for path in package.rglob("*.py"))
    # Python's own help is a text to train on.
    return sys.version, version("torch"), version("numpy"), tuple(sources)


def _entries(place: Path, *, deep: bool) -> Sequence[object] | None:
    """The file, or the entries of the directory; if `deep`, the files below it. None for more than a quick look."""
    try:
        found = [_looks(place)] if place.is_file() else list(islice(_listed(place, deep), _MOST_FILES + 1))
    except FileNotFoundError:
        return None if deep else []  # data with a link to nothing, or no data yet in the cache
    except OSError:
        return None
    return sorted(found) if len(found) <= _MOST_FILES else None


def _listed(folder: Path, deep: bool) -> Iterator[tuple[object, ...]]:
    for entry in os.scandir(folder):
        if deep and entry.is_dir():
            yield from _listed(Path(entry), deep)
        else:
            yield entry.path, *_looks(Path(entry))


def _looks(path: Path) -> tuple[object, ...]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
