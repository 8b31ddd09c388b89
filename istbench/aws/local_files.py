"""What this machine remembers of clusters, in a small JSON file: where they are, and what was fetched of them."""

import os
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from istbench.aws.spec import ClusterSpec, Hours, Region
from istbench.door import decode_json, encode_own, read_bytes, utf8_path
from istbench.errors import UserError
from istbench.files import writing_whole

_WAY_OUT = "move it away; `istbench aws status` finds by their tag what clusters there are"
_T = TypeVar("_T")
_Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Remembered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster that was started from here.

    Attributes:
        spec: what it was made from. region: where it is. max_hours: after which it ends.
        began, ends: in UTC, as ISO 8601. per_hour: what it costs, USD.
    """

    spec: ClusterSpec
    region: Region
    max_hours: Hours
    began: str
    ends: str
    per_hour: _Amount


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is remembered.

    Attributes:
        clusters: by name, those that were not taken down. regions: that were ever used.
        fetched: by cluster, by key in its bucket, the version that was fetched.
    """

    clusters: dict[str, Remembered] = {}
    regions: list[Region] = []
    fetched: dict[str, dict[str, str]] = {}


def memory_file() -> Path:
    """`$XDG_STATE_HOME/istbench/aws.json`, else `~/.local/state/istbench/aws.json`.

    Raises:
        UserError: where there is no home directory.
    """
    base = os.environ.get("XDG_STATE_HOME")
    if base:
        return utf8_path(base, "XDG_STATE_HOME") / "istbench" / "aws.json"
    try:
        return utf8_path(str(Path.home()), "HOME") / ".local" / "state" / "istbench" / "aws.json"
    except RuntimeError:
        raise UserError("no home directory to remember clusters in; name one with XDG_STATE_HOME") from None


def recall() -> Memory:
    """What is remembered; nothing, where there is no file yet.

    Raises:
        UserError: where the file is damaged.
    """
    path = memory_file()
    if not path.exists():
        return Memory()
    return decode_json(read_bytes(path, "what istbench remembers of clusters"), Memory, str(path), _WAY_OUT)


def remember(name: str, cluster: Remembered) -> None:
    """Add `cluster`, or what is new of it.

    Raises:
        UserError: where that cannot be written.
    """
    memory = recall()
    regions = list(dict.fromkeys([*memory.regions, cluster.region]))
    _write(msgspec.structs.replace(memory, clusters={**memory.clusters, name: cluster}, regions=regions))


def forget(name: str) -> None:
    """Drop a cluster that is gone; the region it was in stays remembered."""
    memory = recall()
    _write(
        msgspec.structs.replace(
            memory, clusters=_without(memory.clusters, name), fetched=_without(memory.fetched, name)
        )
    )


def remember_fetched(name: str, versions: dict[str, str]) -> None:
    """Note which version of each object in the bucket of cluster `name` is here."""
    memory = recall()
    _write(msgspec.structs.replace(memory, fetched={**memory.fetched, name: versions}))


def _without(table: dict[str, _T], name: str) -> dict[str, _T]:
    return {key: value for key, value in table.items() if key != name}


def _write(memory: Memory) -> None:
    path = memory_file()
    try:
        with writing_whole(path) as file:
            file.write(msgspec.json.encode(memory, enc_hook=encode_own))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another place with XDG_STATE_HOME") from None
