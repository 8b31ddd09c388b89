"""The record of a run with faults, beside its events: when it began, and the faults that hit it."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.files import writing_whole
from istbench.base.options.numbers import Duration, Natural

Kind = Literal["kill", "host", "stop", "down", "slow", "full", "damage"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OF_LINKS: tuple[Kind, ...] = ("down", "slow")
ENDING: tuple[Kind, ...] = ("kill", "host", "damage")
"""Kinds after which all nodes start again."""
MOST_FAULTS = 1000
_MOST_BYTES = 2**22


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that hit a run.

    Attributes:
        rank: the victim. at_s: its train seconds by the schedule. seconds: that it lasted, on the clock of the run.
        time: in seconds since 1970. step: the last local step before it.
    """

    kind: Kind
    rank: Natural
    at_s: Duration
    seconds: Duration
    time: Duration
    step: Natural


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """When the first evaluation of a run ended, in seconds since 1970, and the faults that hit it."""

    began: Duration
    hits: Annotated[tuple[Hit, ...], Meta(max_length=MOST_FAULTS)]

    def write(self, path: Path) -> None:
        """Write it to `path`."""
        with writing_whole(path) as file:
            file.write(msgspec.json.encode(self) + b"\n")


def read_record(path: Path) -> FaultRecord:
    """The record in `path`.

    Raises:
        UserError: if it is missing or broken.
    """
    way_out = f"delete {path.parent} to run the cell again"
    return decode_json(read_bytes(path, "the faults of a run", _MOST_BYTES), FaultRecord, str(path), way_out)
