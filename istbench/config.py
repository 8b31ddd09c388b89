"""What a run is: the resolved configuration of one cell, options parsed from text, suites read from TOML."""

import dataclasses
import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from istbench.errors import UserError, unknown_name

_NOT_DEFINING = ("timeout_s", "checkpoint_every_s", "plugins")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One cell, fully resolved: everything that defines what is trained and for how long.

    steps: local steps a node, at most; eval_every: local steps between two evaluations.
    batch_size: samples of one node's minibatch. max_seconds: limit on train_s, or None.
    target: metric level at which to stop, or None. threads: intra-op threads of one node.
    timeout_s: limit on one operation of the fabric, in seconds. checkpoint_every_s: least seconds between two
    checkpoints, which are written after an evaluation. plugins: files that define plug-ins. lab: the lab it runs
    in, as `istbench.launch.lab.Lab.to_json` has it; None outside one.
    """

    workload: str
    method: str
    nodes: int
    seed: int
    workload_options: dict[str, Any]
    method_options: dict[str, Any]
    batch_size: int
    steps: int
    eval_every: int
    max_seconds: float | None
    target: float | None
    device: str
    threads: int
    timeout_s: float = 300.0
    checkpoint_every_s: float = 60.0
    plugins: tuple[str, ...] = ()
    lab: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return dataclasses.asdict(self) | {"plugins": list(self.plugins)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RunConfig":
        """The inverse of `to_json`."""
        return cls(**{**data, "plugins": tuple(data["plugins"])})

    def cell(self, fingerprint: str) -> str:
        """The cell's name: readable, ending in a hash of all that defines it and of the data's fingerprint."""
        defining = {key: value for key, value in self.to_json().items() if key not in _NOT_DEFINING}
        if self.lab is None:
            del defining["lab"]
        text = json.dumps({**defining, "data": fingerprint}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.workload}-{self.method}-n{self.nodes}-s{self.seed}-{digest}"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """One cell as a user asks for it; None is left to the workload's default."""

    workload: str
    method: str
    nodes: int = 1
    seed: int = 0
    workload_options: Mapping[str, str] = field(default_factory=dict)
    method_options: Mapping[str, str] = field(default_factory=dict)
    batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    max_seconds: float | None = None
    target: float | None = None
    eval_every: int | None = None
    device: str = "auto"
    threads: int | None = None
    timeout_s: float = 300.0
    checkpoint_every_s: float = 60.0
    data: Path | None = None
    plugins: tuple[str, ...] = ()
    lab: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in (
            "nodes",
            "batch_size",
            "steps",
            "epochs",
            "max_seconds",
            "eval_every",
            "threads",
            "timeout_s",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{name.replace('_', '-')} must be above zero, not {value:g}")
        if self.checkpoint_every_s < 0:
            raise UserError(f"checkpoint-every must be zero or more, not {self.checkpoint_every_s:g}")
        if self.seed < 0:
            raise UserError(f"seed must be zero or more, not {self.seed}")
        if self.target is not None and not 0 < self.target <= 1:
            raise UserError(f"target is a metric level above 0 and at most 1, such as 0.77, not {self.target:g}")
        if self.steps is not None and self.epochs is not None:
            raise UserError("give --steps or --epochs, not both")


def build_options(options: type, texts: Mapping[str, Any], what: str, defaults: Mapping[str, Any]) -> Any:
    """An instance of dataclass `options` from `texts` (values as typed, or already of their type).

    `defaults` are laid under; names that the dataclass lacks are ignored there. `what` names the owner in
    errors, such as "method 'ist'".

    Raises:
        UserError: for an unknown name, with the nearest valid one, or a value that does not parse.
    """
    hints = typing.get_type_hints(options)
    known = {f.name for f in dataclasses.fields(options)}
    values = {name: value for name, value in defaults.items() if name in known}
    for name, text in texts.items():
        if name not in known:
            raise unknown_name(f"option of {what}", name, known)
        values[name] = _parse(text, hints[name], f"{what}: option {name}")
    return options(**values)


def _parse(text: Any, kind: Any, where: str) -> Any:
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    if choices:
        if text not in choices:
            raise UserError(f"{where} must be one of {', '.join(map(str, choices))}, not {text!r}")
        return text
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if kind is bool:
        flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(text).lower() not in flags:
            raise UserError(f"{where} must be true or false, not {text!r}")
        return flags[str(text).lower()]
    try:
        if kind is int and float(text) != int(float(text)):
            raise ValueError
        return kind(float(text)) if kind is int else kind(text)
    except (ValueError, OverflowError):
        noun = {"int": "a whole number", "float": "a number"}.get(kind.__name__, f"a {kind.__name__}")
        raise UserError(f"{where} must be {noun}, not {text!r}") from None


def parse_pairs(pairs: Iterable[str], flag: str) -> dict[str, str]:
    """`name=value` texts as a dictionary.

    Raises:
        UserError: for a text without a name and an equals sign.
    """
    parsed = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise UserError(f"{flag} {pair!r} is not of the form name=value")
        parsed[name.strip()] = value.strip()
    return parsed


_SUITE_KEYS = {"workload", "methods", "nodes", "seeds", "run", "workload_options", "options"}
_RUN_KEYS = {
    "batch_size",
    "steps",
    "epochs",
    "max_seconds",
    "target",
    "eval_every",
    "device",
    "threads",
    "data",
}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Many cells: methods x nodes x seeds over one workload.

    methods: per label, the method's name and its own options. run: fields of `RunRequest` for every cell.
    """

    workload: str
    methods: tuple[tuple[str, dict[str, Any]], ...]
    nodes: tuple[int, ...]
    seeds: tuple[int, ...]
    workload_options: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    def requests(self, plugins: tuple[str, ...] = ()) -> list[RunRequest]:
        """The cells, in the order in which they are run: all methods of one seed before the next seed."""
        return [
            RunRequest(
                workload=self.workload,
                method=method,
                nodes=nodes,
                seed=seed,
                method_options=options,
                workload_options=self.workload_options,
                plugins=plugins,
                **self.run,
            )
            for seed in self.seeds
            for nodes in self.nodes
            for method, options in self.methods
        ]


def read_suite(path: Path) -> list[Suite]:
    """The suites of a TOML file: `[[suite]]` tables, or one suite at the top level.

    Keys of a suite: `workload`, `methods` (names, or tables with `method` and options), `nodes`, `seeds` (a
    count or a list), `workload_options`, and `run` (steps, epochs, batch_size, ...).

    Raises:
        UserError: naming the file and, for a syntax error, the line.
    """
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"no suite file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML suite: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read suite {path}: {error.strerror}") from None
    tables = data.get("suite", [data])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{path}: 'suite' must be a list of tables: write [[suite]]")
    return [_suite(table, str(path)) for table in tables]


def _suite(table: dict[str, Any], where: str) -> Suite:
    for key in table:
        if key not in _SUITE_KEYS:
            raise unknown_name(f"key in {where}", key, _SUITE_KEYS)
    for key in ("workload", "methods"):
        if key not in table:
            raise UserError(f"{where}: a suite needs {key!r}")
    run = table.get("run", {})
    for key in run:
        if key not in _RUN_KEYS:
            raise unknown_name(f"key in {where} [run]", key, _RUN_KEYS)
    if "data" in run:
        run = {**run, "data": Path(run["data"])}
    seeds = table.get("seeds", 1)
    return Suite(
        workload=table["workload"],
        methods=tuple(_method(entry, where) for entry in table["methods"]),
        nodes=_integers(table.get("nodes", [2]), f"{where}: nodes"),
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else _integers(seeds, f"{where}: seeds"),
        workload_options=dict(table.get("workload_options", {})),
        run=run,
    )


def _method(entry: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and isinstance(entry.get("method"), str):
        return entry["method"], {key: value for key, value in entry.items() if key != "method"}
    raise UserError(f"{where}: a method is a name or a table with 'method' and its options, not {entry!r}")


def _integers(values: Any, where: str) -> tuple[int, ...]:
    listed = values if isinstance(values, list) else [values]
    if not listed or not all(isinstance(value, int) and not isinstance(value, bool) for value in listed):
        raise UserError(f"{where} must be whole numbers, not {values!r}")
    return tuple(listed)
