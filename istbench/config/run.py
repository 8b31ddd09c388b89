"""A run's options, each said once: its bounds, default, help, and whether it defines the cell."""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from istbench.config.interval import Interval
from istbench.config.lab import Lab
from istbench.config.numbers import Count, Duration, Epochs, Level, Nodes, Seconds, Seed, Threads
from istbench.door import convert, encode_own
from istbench.errors import UserError

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a row of the table says beside the type, its bounds and the default.

    Attributes:
        flag: on the command line, by default made of the name. metavar: what stands for its value in help.
        show_default: whether help shows the default. defines_cell: whether another value is another cell.
        in_suites: whether `[suite.run]` may set it.
    """

    help: str
    flag: str = ""
    metavar: str | None = None
    show_default: bool = False
    defines_cell: bool = True
    in_suites: bool = True


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """One cell as a user asks for it: the table of a run's options. None is left to the workload's default.

    Raises:
        UserError: for a value out of bounds, or options that exclude each other.
    """

    workload: str
    method: str
    nodes: Annotated[Nodes, Described(help="Worker processes.", show_default=True, in_suites=False)] = 1
    seed: Annotated[
        Seed, Described(help="Seed of weights, data order and partitions.", show_default=True, in_suites=False)
    ] = 0
    workload_options: Mapping[str, Any] = field(default_factory=dict)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: Annotated[Count | None, Described(help="Samples of one node's minibatch.")] = None
    steps: Annotated[Count | None, Described(help="Local steps a node to train for.")] = None
    epochs: Annotated[Epochs | None, Described(help="Passes over the training data by all nodes together.")] = None
    max_seconds: Annotated[
        Seconds | None, Described(help="Stop at the first evaluation after so many train seconds.")
    ] = None
    target: Annotated[Level | None, Described(help="Stop when the metric reaches this level, such as 0.77.")] = None
    eval_every: Annotated[
        Interval | None,
        Described(
            help="Between two evaluations: N local steps, or some N train seconds as 30s. Default: one epoch.",
            metavar="N|Ns",
        ),
    ] = None
    data: Annotated[
        Path | None,
        Described(
            help="Real data, as the workload's documentation lays it out. Default: what `istbench data` left, else "
            "synthetic.",
            metavar="DIR",
        ),
    ] = None
    device: Annotated[Device, Described(help="auto, cpu or cuda.", show_default=True)] = "auto"
    amp: Annotated[
        Precision | None, Described(help="Mixed precision: forward passes in this type. Default: float32.")
    ] = None
    channels_last: Annotated[bool, Described(help="Images and their filters with the channels last in memory.")] = (
        False
    )
    compile: Annotated[bool, Described(help="Compile the model's forward pass, off the clock.")] = False
    threads: Annotated[
        Threads | None, Described(help="Intra-op threads a node. Default: cores over nodes, at least one.")
    ] = None
    timeout_s: Annotated[
        Seconds,
        Described(
            help="Seconds after which a silent node, or one whose step does not end, is given up.",
            flag="--timeout",
            show_default=True,
            defines_cell=False,
        ),
    ] = 300.0
    checkpoint_every_s: Annotated[
        Duration,
        Described(
            help="Least seconds between two checkpoints, which follow an evaluation.",
            flag="--checkpoint-every",
            show_default=True,
            defines_cell=False,
        ),
    ] = 60.0
    anyway: Annotated[
        bool, Described(help="Start it even if this machine's memory is too small for it.", defines_cell=False)
    ] = False
    save: Annotated[
        Path | None,
        Described(
            help="Save the final weights there: safetensors, in several files with an index where they are large.",
            metavar="DIR",
            defines_cell=False,
            in_suites=False,
        ),
    ] = None
    plugins: tuple[str, ...] = ()
    lab: Lab | None = None

    def __post_init__(self) -> None:
        for option in RUN_OPTIONS:
            object.__setattr__(self, option.name, option.decode(getattr(self, option.name), option.name))
        if self.steps is not None and self.epochs is not None:
            raise UserError("give --steps or --epochs, not both")


@dataclass(frozen=True, kw_only=True)
class RunOption(Described):
    """A row of the table: its name in `RunRequest`, in suites and in headers, its type with bounds, its default."""

    name: str
    kind: Any
    default: Any

    def decode(self, value: Any, where: str, *, text: bool = False) -> Any:
        """`value` as one of the type; where `text`, a text may stand for a number.

        Raises:
            UserError: where it is of another type or out of bounds, which says so of `where`.
        """
        return (
            value if isinstance(value, Interval | Path) else convert(value, self.kind, lambda _: where, text=text)
        )


def _table() -> tuple[RunOption, ...]:
    kinds = typing.get_type_hints(RunRequest, include_extras=True)
    rows = []
    for column in dataclasses.fields(RunRequest):
        annotations = getattr(kinds[column.name], "__metadata__", ())
        said = [part for part in annotations if isinstance(part, Described)]
        if said:
            given = {**vars(said[0]), "flag": said[0].flag or f"--{column.name.replace('_', '-')}"}
            rows.append(RunOption(name=column.name, kind=kinds[column.name], default=column.default, **given))
    return tuple(rows)


RUN_OPTIONS = _table()
# Names of cells from before there was one of these are to be found again.
_NAMED_WHERE_SET = ("lab", "code", "amp", "channels_last", "compile")
_NOT_DEFINING = {"plugins", *(option.name for option in RUN_OPTIONS if not option.defines_cell)}


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One cell, fully resolved: everything that defines what is trained and for how long.

    Attributes:
        steps: local steps a node, at most. batch_size: samples of one node's minibatch.
        eval_every: between two evaluations. max_seconds: limit on train_s. target: metric level at which to stop.
        threads: intra-op threads of one node. timeout_s: limit on one operation of the fabric.
        checkpoint_every_s: least seconds between two checkpoints, which are written after an evaluation.
        save: directory for the final weights. plugins: files that define plug-ins.
        lab: the lab it runs in, None outside one.
        code: what says which code the method and the workload are, where that is not istbench's own; else empty.
    """

    workload: str
    method: str
    nodes: Nodes
    seed: Seed
    workload_options: dict[str, Any]
    method_options: dict[str, Any]
    batch_size: Count
    steps: Count
    eval_every: Interval
    max_seconds: Seconds | None = None
    target: Level | None = None
    device: Device
    amp: Precision | None = None
    channels_last: bool = False
    compile: bool = False
    threads: Threads
    timeout_s: Seconds = 300.0
    checkpoint_every_s: Duration = 60.0
    save: str | None = None
    plugins: tuple[str, ...] = ()
    lab: Lab | None = None
    code: str = ""

    def cell(self, fingerprint: str) -> str:
        """The cell's name: readable, ending in a hash of all that defines it and of the data's fingerprint."""
        values = msgspec.to_builtins(self, enc_hook=encode_own)
        defining = {key: value for key, value in values.items() if key not in _NOT_DEFINING}
        defining = {key: value for key, value in defining.items() if value or key not in _NAMED_WHERE_SET}
        text = json.dumps({**defining, "data": fingerprint}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.workload}-{self.method}-n{self.nodes}-s{self.seed}-{digest}"
