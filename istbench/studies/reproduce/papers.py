"""The papers by name, each from a TOML file beside this one."""

from collections.abc import Mapping
from typing import Any

import msgspec

from istbench.base.decode import convert, parse_toml, read_text, toml_lines
from istbench.base.options.suite import Suite
from istbench.studies.reproduce.curves import Curves, Finals, SpeedUps
from istbench.studies.reproduce.gains import MeasuredGains, ReplayedGains
from istbench.studies.reproduce.memory import PlannedMemory
from istbench.studies.reproduce.paper import PUBLISHED, Cells, Difference, Experiment, Extent, Paper, Scale


class _CellsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells. methods: a name in the file's `[methods]`. The others: as in `Suite` and `Cells`."""

    workload: str
    methods: str
    nodes: int
    seeds: int = 1
    workload_options: dict[str, Any] = {}
    run: dict[str, Any]
    hours: float | None = None
    hours_with_data: float | None = None
    weights: dict[str, float] = {}


class _ExtentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `Extent`. cells, differs: names in the file's tables of these."""

    measure: Curves | Finals | MeasuredGains | PlannedMemory | ReplayedGains | SpeedUps
    cells: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    needs_data: bool = False


class _ExperimentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `Experiment`. laptop: None for one that no laptop can hold. paper: as at laptop scale by default."""

    name: str
    title: str
    laptop: _ExtentTable | None = None
    paper: _ExtentTable | None = None


class _PaperTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    methods: dict[str, tuple[tuple[str, dict[str, Any]], ...]]
    cells: dict[str, _CellsTable]
    differences: dict[str, Difference]
    experiments: tuple[_ExperimentTable, ...]

    def experiment(self, table: _ExperimentTable) -> Experiment:
        tables: dict[Scale, _ExtentTable | None] = {"laptop": table.laptop, "paper": table.paper or table.laptop}
        at = {scale: self._extent(extent) for scale, extent in tables.items() if extent is not None}
        return Experiment(name=table.name, title=table.title, at=at)

    def _extent(self, table: _ExtentTable) -> Extent:
        return Extent(
            cells=tuple(self._cells(self.cells[name]) for name in table.cells),
            measure=table.measure,
            differs=tuple(self.differences[name] for name in table.differs),
            needs_data=table.needs_data,
        )

    def _cells(self, table: _CellsTable) -> Cells:
        suite = Suite(
            workload=table.workload,
            methods=self.methods[table.methods],
            nodes=(table.nodes,),
            seeds=tuple(range(table.seeds)),
            workload_options=table.workload_options,
            run=table.run,
        )
        return Cells(suite=suite, hours=table.hours, hours_with_data=table.hours_with_data, weights=table.weights)


def _load(name: str) -> Paper:
    path = PUBLISHED / f"{name}.toml"
    text = read_text(path, "a paper")
    table = convert(parse_toml(text, path.name), _PaperTable, toml_lines(text, path.name))
    return Paper(name=name, title=table.title, experiments=tuple(map(table.experiment, table.experiments)))


PAPERS: Mapping[str, Paper] = {name: _load(name) for name in ("ist", "p3", "dslide")}
