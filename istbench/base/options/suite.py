"""Suites: many cells, described in a TOML file."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from istbench.base.decode import Locate, convert, parse_toml, read_text, toml_lines
from istbench.base.errors import UserError, shown, unknown_name
from istbench.base.files import is_file
from istbench.base.options.numbers import MOST_NODES, Count, Nodes, Part, Seed
from istbench.base.options.run import RUN_OPTIONS, RunRequest
from istbench.base.options.task_file import is_task_file, named_with_file
from istbench.base.shipped import suites_folder

MOST_CELLS = 10_000
_SUITE_NAME = r"[a-z0-9-]{1,64}(/[a-z0-9-]{1,64})?"
_OptionValue = bool | int | float | str | list[int | float | str]
_RunTable = msgspec.defstruct(
    "run",
    [(option.name, option.kind | None, None) for option in RUN_OPTIONS if option.in_suites],
    kw_only=True,
    frozen=True,
    forbid_unknown_fields=True,
)


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choice of the methods' options in a suite by `istbench tune`.

    Attributes:
        trials: of each method on each number of nodes; tables name it. seed: of the trials.
        held_out: share of the training data that judged them. judged_by: in words.
    """

    trials: Count
    seed: Seed
    held_out: Part
    judged_by: Annotated[str, Meta(max_length=1000)] = ""


class _SuiteTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workload: Annotated[str, Meta(min_length=1)]
    methods: Annotated[list[str | dict[str, _OptionValue]], Meta(min_length=1, max_length=1000)]
    nodes: Nodes | Annotated[list[Nodes], Meta(min_length=1, max_length=MOST_NODES)] = msgspec.field(
        default_factory=lambda: [2]
    )
    seeds: (
        Annotated[int, Meta(ge=1, le=MOST_CELLS)] | Annotated[list[Seed], Meta(min_length=1, max_length=MOST_CELLS)]
    ) = 1
    workload_options: dict[str, _OptionValue] = {}
    method_options: dict[str, _OptionValue] = {}
    controls: bool = False
    run: _RunTable = _RunTable()  # type: ignore[valid-type]
    tuning: Tuning | None = None


class _SuitesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suite: Annotated[list[_SuiteTable], Meta(min_length=1, max_length=1000)]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Many cells: methods x nodes x seeds over one workload.

    Attributes:
        methods: the name and the options of each method. run: fields of `RunRequest` for every cell.
        controls: whether `compare` adds the controls of `--controls`.
    """

    workload: str
    methods: tuple[tuple[str, Mapping[str, Any]], ...]
    nodes: tuple[int, ...]
    seeds: tuple[int, ...]
    workload_options: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    controls: bool = False

    def requests(self, plugins: tuple[str, ...] = ()) -> list[RunRequest]:
        """The cells in the order of their runs: all methods of one seed before the next seed."""
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


def suite_file(given: Path) -> Path:
    """`given`, or istbench's own suite of that name, such as `quick` or `light/grid`.

    Raises:
        UserError: if there is neither, and for a task file.
    """
    if is_task_file(str(given)):
        raise UserError(f"{given} is a task file, not a suite; `istbench compare --workload {given}` trains it")
    if not re.fullmatch(_SUITE_NAME, given.as_posix()) or is_file(given):
        return given
    folder = suites_folder()
    own = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.toml")}
    if given.as_posix() not in own:
        raise unknown_name("suite", given.as_posix(), own)
    return own[given.as_posix()]


def read_suite(given: Path) -> list[Suite]:
    """The suites of a TOML file, or of istbench's own by its name: `[[suite]]` tables, or one at the top level.

    Keys of a suite: `workload` (a name: only the command line names files of code), `methods` (names, or tables
    with `method` and options), `nodes`, `seeds` (a count or a list), `workload_options`, `method_options` (of every
    method), `controls` (whether to add all of them), `run` (steps, epochs, batch_size, ...), and `tuning` (a
    `Tuning`).

    Raises:
        UserError: naming the file and the line.
    """
    path = suite_file(given)
    text = read_text(path, "a TOML suite")
    data = parse_toml(text, str(path))
    locate = toml_lines(text, str(path))
    tables: list[tuple[_SuiteTable, tuple[str | int, ...]]]
    if "suite" in data:
        listed = convert(data, _SuitesTable, locate).suite
        tables = [(table, ("suite", number)) for number, table in enumerate(listed)]
    else:
        tables = [(convert(data, _SuiteTable, locate), ())]
    check_cells(sum(_cells(table) for table, _ in tables), str(path))
    return [_suite(table, at, locate) for table, at in tables]


def check_cells(count: int, where: str, *, fewer: str = "seeds") -> None:
    """Refuse too many cells; `fewer` of these is the way out.

    Raises:
        UserError: for more than `MOST_CELLS` cells.
    """
    if count > MOST_CELLS:
        raise UserError(f"{where} has {count:,} cells, more than {MOST_CELLS:,}; use fewer {fewer}")


def _cells(table: _SuiteTable) -> int:
    nodes = 1 if isinstance(table.nodes, int) else len(table.nodes)
    seeds = table.seeds if isinstance(table.seeds, int) else len(table.seeds)
    return math.prod((nodes, seeds, len(table.methods)))


def _suite(table: _SuiteTable, at: tuple[str | int, ...], locate: Locate) -> Suite:
    run = {name: value for name, value in msgspec.structs.asdict(table.run).items() if value is not None}
    if "steps" in run and "epochs" in run:
        raise UserError(f"{locate((*at, 'run', 'epochs'))} stands beside steps; give one of the two")
    if is_task_file(table.workload):
        name, _ = named_with_file(table.workload)
        raise UserError(
            f"{locate((*at, 'workload'))} is the file {shown(table.workload)}, and only the command line names "
            f"code: write workload = {shown(name)} and give the file by --plugin"
        )
    if table.tuning is not None:
        if "tuned" in run:
            raise UserError(f"{locate((*at, 'run', 'tuned'))} stands beside tuning; leave it out")
        run["tuned"] = table.tuning.trials
    nodes = (table.nodes,) if isinstance(table.nodes, int) else tuple(table.nodes)
    if "shares" in run:
        for count in nodes:
            run["shares"].check(count, locate((*at, "run", "shares")))
    return Suite(
        workload=table.workload,
        methods=tuple(
            _method(entry, table.method_options, locate((*at, "methods", number)))
            for number, entry in enumerate(table.methods)
        ),
        nodes=nodes,
        seeds=tuple(range(table.seeds)) if isinstance(table.seeds, int) else tuple(table.seeds),
        workload_options=table.workload_options,
        run=run,
        controls=table.controls,
    )


def _method(
    entry: str | dict[str, _OptionValue], shared: Mapping[str, _OptionValue], where: str
) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, dict(shared)
    name = entry.get("method")
    if not isinstance(name, str):
        raise UserError(f"{where} must be a name, or a table with 'method' and options")
    return name, {**shared, **{key: value for key, value in entry.items() if key != "method"}}
