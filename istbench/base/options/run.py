"""Options of a run. Each is one row: type, bounds, default, help and flags. All lists of options follow from it."""

import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from istbench.base.decode import Written, convert, encode_own
from istbench.base.errors import UserError
from istbench.base.options.elastic import Elastic
from istbench.base.options.interval import Interval
from istbench.base.options.numbers import (
    MOST_NODES,
    Count,
    Duration,
    Epochs,
    Level,
    Natural,
    Nodes,
    Part,
    Seconds,
    Seed,
    Threads,
)
from istbench.base.options.options import OptionValues, option_text
from istbench.base.options.shares import Shares
from istbench.base.options.task_file import CodeName, named_with_file
from istbench.base.options.texts import Short, Text, Texts

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["bf16", "fp16"]


@dataclass(frozen=True)
class About:
    """What istbench knows of a field of `RunConfig` or `RunRequest`, beside its type, bounds and default.

    Attributes:
        help: of an option of the command line; empty for a field that is none.
        flag: on the command line; by default it follows from the name. metavar: the name of its value in help.
        show_default: whether help shows the default.
        in_suites: `[suite.run]` may set it.
        of_machine: the command line may set it beside a suite, since it belongs to the machine.
        defines_cell: another value is another cell.
        tells_rows_apart: a table adds it to the labels of rows that differ in it; by default if it is `computing`.
            A table's title or columns name the other fields.
        tells_methods_apart: it does so also where rows of several methods differ, on as many nodes. All methods of
            a comparison should have the same value.
        computing: it changes the arithmetic or the speed of a step. Rows are compared where these are equal.
        may_differ_by_host: the hosts of one run may have different values.
    """

    help: str = ""
    _: KW_ONLY
    flag: str = ""
    metavar: str | None = None
    show_default: bool = False
    in_suites: bool = True
    of_machine: bool = False
    defines_cell: bool = True
    tells_rows_apart: bool | None = None
    tells_methods_apart: bool = False
    computing: bool = False
    may_differ_by_host: bool = False


class LabHosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts of several nodes: the nodes of each, and a node's bandwidth to the others of its host, bits/s."""

    nodes: Annotated[int, Meta(ge=2, le=MOST_NODES)]
    bandwidth: Annotated[float, Meta(gt=0, le=1e18)]


class Uplink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shaped link of each rack of a lab: its nodes, and its bandwidth in each direction, bits/s."""

    nodes: Count
    bandwidth: Annotated[float, Meta(gt=0, le=1e18)]


class Lab(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shaped network inside one machine, as a run records it.

    Attributes:
        summary: one line for readers.
        bandwidth: of every host's link, in each direction, bits/s. burst_bytes: bytes on the wire that an idle link
            carries at once.
        latency_s: added to each message between two hosts, seconds.
        dilation: everything runs this many times slower than requested; clocks are divided by it.
        hosts: None in a lab where every node is a host. uplink: of racks; None in a lab without racks.
        recorded_steps: local steps that a trace has at least; by default those of a sample.
    """

    summary: Text
    bandwidth: Annotated[float, Meta(gt=0, le=1e18)]
    burst_bytes: Natural = 0
    latency_s: Duration = 0.0
    dilation: Annotated[float, Meta(ge=1, le=1e6)] = 1.0
    hosts: LabHosts | None = None
    uplink: Uplink | None = None
    recorded_steps: Count | None = None


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a request that a run records. None leaves the value to the workload or to the machine."""

    workload: Text
    method: Text
    workload_options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    method_options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    nodes: Annotated[Nodes, About("Worker processes.", show_default=True, in_suites=False)] = 1
    seed: Annotated[
        Seed, About("Seed of weights, data order and partitions.", show_default=True, in_suites=False)
    ] = 0
    batch_size: Annotated[Count | None, About("Samples in the minibatch of one node.")] = None
    steps: Annotated[
        Count | None, About("Train for this many local steps on each node.", tells_rows_apart=True)
    ] = None
    max_seconds: Annotated[Seconds | None, About("Stop at the first evaluation after this many train seconds.")] = (
        None
    )
    target: Annotated[
        Level | None, About("Stop when the metric is at this level or better: accuracy 0.77, or loss 1.9.")
    ] = None
    eval_every: Annotated[
        Interval | None,
        About(
            "Evaluate every N local steps, or every N train seconds, such as 30s. Default: once an epoch.",
            metavar="N|Ns",
            tells_rows_apart=True,
            tells_methods_apart=True,
        ),
    ] = None
    device: Annotated[Device, About("auto, cpu or cuda.", show_default=True, of_machine=True)] = "auto"
    amp: Annotated[
        Precision | None, About("Mixed precision: the type of the forward pass. Default: float32.", computing=True)
    ] = None
    channels_last: Annotated[
        bool, About("Store images and convolution filters with the channels last in memory.", computing=True)
    ] = False
    compile: Annotated[
        bool, About("Compile the model's forward pass. The train clock does not count compiling.", computing=True)
    ] = False
    shares: Annotated[
        Shares | None,
        About(
            "Relative speeds of unequal nodes, such as .5,1,1, or speed to measure them. Each node gets its share "
            "of the samples of a step, or of the units in ist. Default: all nodes get the same.",
            metavar="SPEED,...|speed",
            computing=True,
        ),
    ] = None
    elastic: Annotated[
        Elastic | None,
        About(
            "With --restarts: after a loss go on with the nodes that are left, MIN at least, and with up to MAX "
            "(--nodes) once they are back.",
            metavar="MIN:MAX",
            in_suites=False,
            computing=True,
        ),
    ] = None
    held_out: Annotated[
        Part | None,
        About(
            "Hold this share of the training data out and evaluate on it. The test split stays unread.",
            metavar="SHARE",
        ),
    ] = None
    tuned: Annotated[
        Count | None,
        About(
            "Record that this many trials chose the method's options; suites of `istbench tune` set it.",
            metavar="TRIALS",
            defines_cell=False,
        ),
    ] = None
    threads: Annotated[
        Threads | None,
        About(
            "Intra-op threads of each node. Default: cores divided by nodes, at least 1.",
            of_machine=True,
            computing=True,
            tells_methods_apart=True,
            may_differ_by_host=True,
        ),
    ] = None
    timeout_s: Annotated[
        Seconds,
        About(
            "End the run when a node sends nothing, or stays in one step, for this many seconds.",
            flag="--timeout",
            show_default=True,
            defines_cell=False,
            of_machine=True,
        ),
    ] = 300.0
    checkpoint_every_s: Annotated[
        Duration | Literal["auto"],
        About(
            "Minimum seconds between two checkpoints. A checkpoint follows an evaluation. auto: what loses the "
            "least time, by the cost of the last one and the losses of this run.",
            flag="--checkpoint-every",
            metavar="SECONDS|auto",
            show_default=True,
            defines_cell=False,
            of_machine=True,
        ),
    ] = 60.0
    plugins: Annotated[Texts, About(defines_cell=False, may_differ_by_host=True)] = ()
    # Tables describe the lab in words.
    lab: Annotated[Lab | None, About(computing=True, tells_rows_apart=False)] = None
    # The schedule of `istbench faults`, in words.
    faults: Text | None = None


class RunRequest(_Options, frozen=True, kw_only=True):
    """One cell as the user requests it. A workload that is a file becomes its name, and a plug-in file.

    Raises:
        UserError: for a value out of bounds, or options that exclude each other.
    """

    epochs: Annotated[
        Epochs | None, About("Train for this many passes over the training data, by all nodes together.")
    ] = None
    data: Annotated[
        Path | None,
        About(
            "Directory of the real data; the workload's documentation describes its layout. Default: data "
            "from `istbench data`, else synthetic data.",
            metavar="DIR",
            of_machine=True,
        ),
    ] = None
    anyway: Annotated[
        bool, About("Start even if this machine has too little memory.", defines_cell=False, of_machine=True)
    ] = False
    save: Annotated[
        Path | None,
        About(
            "Save the final weights in this directory: safetensors, in several files with an index where they "
            "are large.",
            metavar="DIR",
            defines_cell=False,
            in_suites=False,
            may_differ_by_host=True,
        ),
    ] = None

    sinks: Annotated[Texts, About(defines_cell=False, may_differ_by_host=True)] = ()

    def __post_init__(self) -> None:
        name, plugins = named_with_file(self.workload, self.plugins)
        msgspec.structs.force_setattr(self, "workload", name)
        msgspec.structs.force_setattr(self, "plugins", plugins)
        for option in RUN_OPTIONS:
            value = option.decode(getattr(self, option.name), option.name)
            msgspec.structs.force_setattr(self, option.name, value)
        if self.steps is not None and self.epochs is not None:
            raise UserError("give --steps or --epochs, not both")
        if self.shares is not None:
            self.shares.check(self.nodes, f"--shares {self.shares}")
        if self.elastic is not None:
            self.elastic.check(self.nodes)
            if self.shares is not None:
                raise UserError(f"--elastic {self.elastic}: --shares is for a fixed group; leave one of them out")

    def arguments(self) -> tuple[str, ...]:
        """The arguments after `istbench` that request this cell, outside a lab."""
        given = ["run", f"--workload={self.workload}", f"--method={self.method}"]
        for flag, options in (("--workload-set", self.workload_options), ("--set", self.method_options)):
            given += [f"{flag}={name}={option_text(value)}" for name, value in options.items()]
        for option in RUN_OPTIONS:
            value = getattr(self, option.name)
            if value != option.default:
                given.append(option.flag if value is True else f"{option.flag}={value}")
        return (*given, *(f"--plugin={path}" for path in self.plugins), *(f"--sink={sink}" for sink in self.sinks))


class RunConfig(_Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cell, fully resolved: everything that defines the model, the training and its length.

    Attributes:
        steps: local steps of a node, at most. save: directory for the final weights. plugins: plug-in files.
            A record of them is for readers: `plugins_of` gives the files to import.
        threads: those that the user gave; the header has those in use.
        sinks: other places for the evaluations, NAME or NAME=WHERE.
        code: a digest of the plug-ins' code, where the method or the workload is not istbench's own; else empty.
    """

    workload: CodeName
    method: CodeName
    workload_options: OptionValues
    method_options: OptionValues
    nodes: Nodes
    seed: Seed
    batch_size: Count
    steps: Count
    eval_every: Interval
    device: Device
    save: Text | None = None
    sinks: Texts = ()
    code: Annotated[Short, About(tells_rows_apart=True)] = ""

    @classmethod
    def of(cls, request: RunRequest, **resolved: Any) -> "RunConfig":
        """`request` with `resolved` in place of the values that it leaves to the workload and to the machine."""
        given = {name: getattr(request, name) for name in cls.__struct_fields__ if hasattr(request, name)}
        return cls(**{**given, **resolved})

    def request(self, **changed: Any) -> RunRequest:
        """The request for this cell, with `changed` fields. It names no data, no lab and no directory for weights.

        Raises:
            UserError: for options that are no valid request.
        """
        given = {
            name: getattr(self, name)
            for name in RunRequest.__struct_fields__
            if hasattr(self, name) and name not in ("lab", "save")
        }
        for name in ("workload_options", "method_options"):  # None cannot be typed, and is the default
            given[name] = {option: value for option, value in given[name].items() if value is not None}
        return RunRequest(**{**given, **changed})

    def cell(self, fingerprint: str) -> str:
        """The cell's name: readable, and ending in a hash of the defining fields and of the data's fingerprint.

        Fields without a value are not in it. So a new option leaves the names of cells without it as they are, and
        machines with other cores give the same name unless the user gave the threads.
        """
        values = msgspec.to_builtins(self, enc_hook=encode_own)
        given = {name: value for name, value in values.items() if value is not None}
        defining = {name: value for name, value in given.items() if _FIELDS[name].defines_cell}
        text = json.dumps({**defining, "data": fingerprint}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.workload}-{self.method}-{nodes_part(self)}-s{self.seed}-{digest}"


def nodes_part(of: RunRequest | RunConfig) -> str:
    """The part of a cell's name with its nodes: `n4`, or `elastic-n2-4`."""
    return f"n{of.nodes}" if of.elastic is None else f"elastic-n{of.elastic.least}-{of.elastic.most}"


@dataclass(frozen=True, kw_only=True)
class RunOption(About):
    """An option: its name in `RunRequest`, suites and headers, its type with bounds, and its default."""

    name: str
    kind: Any
    default: Any

    def decode(self, value: Any, where: str, *, text: bool = False) -> Any:
        """`value` as the option's type. With `text`, a text may stand for a number.

        Raises:
            UserError: for a value of another type or out of bounds; the message begins with `where`.
        """
        if isinstance(value, Path | Written):
            return value
        return convert(value, self.kind, lambda _: where, text=text)


def _about(kind: Any) -> About:
    return next((part for part in getattr(kind, "__metadata__", ()) if isinstance(part, About)), About())


_KINDS = typing.get_type_hints(RunRequest, include_extras=True)
RUN_OPTIONS = tuple(
    RunOption(
        name=field.name,
        kind=_KINDS[field.name],
        default=field.default,
        **{**vars(about), "flag": about.flag or f"--{field.name.replace('_', '-')}"},
    )
    for field in msgspec.structs.fields(RunRequest)
    if (about := _about(_KINDS[field.name])).help
)
# A narrower type in RunConfig leaves the words to the request.
_FIELDS = {
    name: _about(_KINDS.get(name, kind))
    for name, kind in typing.get_type_hints(RunConfig, include_extras=True).items()
    if name in RunConfig.__struct_fields__
}

OF_MACHINE = tuple(option.name for option in RUN_OPTIONS if option.of_machine)
"""Options that the command line may set beside a suite."""

LABELLED = tuple(option.name for option in RUN_OPTIONS if option.computing and not option.of_machine)
"""Options of computing that belong to a method's label, and that `--json` prints."""

COMPUTING = tuple(name for name, about in _FIELDS.items() if about.computing)
"""Fields of `RunConfig` that are equal in rows that are compared."""

TELLING_APART = tuple(
    name
    for name, about in _FIELDS.items()
    if (about.computing if about.tells_rows_apart is None else about.tells_rows_apart)
)
"""Fields of `RunConfig` that tell the rows of a table apart, beside the method's and the workload's options."""

TELLING_METHODS_APART = tuple(name for name, about in _FIELDS.items() if about.tells_methods_apart)
"""Those of them that also tell rows of several methods apart."""

MAY_DIFFER_BY_HOST = tuple(name for name, about in _FIELDS.items() if about.may_differ_by_host)
"""Fields of `RunConfig` in which the hosts of one run may differ."""
