"""A paper as data: its experiments, and for each scale their cells, measure and differences from the paper."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from istbench.base.options.options import label_of
from istbench.base.options.run import RunRequest
from istbench.base.options.suite import Suite
from istbench.report.plots.plot import Plot
from istbench.report.tables.table import Table
from istbench.results.load import Run
from istbench.results.stats import SeedMedian

Scale = Literal["laptop", "paper"]
PUBLISHED = Path(__file__).parent / "published"
"""Folder of the published figures, and of profiles of the papers' machines."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference from the published runs.

    Attributes:
        aspect: one word, as rows name it. text: a sentence.
        made_up: whether only runs on data that istbench makes differ so.
    """

    aspect: str
    text: str
    made_up: bool = False


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Cells of an experiment.

    Attributes:
        hours: an estimate for one seed of all of them on two cores, on data that istbench makes; None if unknown.
        hours_with_data: the same on the data of `--data`, of which more take longer. A budget in steps has none.
        weights: how long a cell of a method takes beside those of others; 1 for a method that it does not name.
    """

    suite: Suite
    hours: float | None = None
    hours_with_data: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method on a number of nodes, as an experiment trains it.

    Attributes:
        request: its cell of the first seed.
        seeds: number of seeds that the experiment trains.
        runs: the finished ones, by seed.
    """

    request: RunRequest
    seeds: int
    runs: tuple[Run, ...] = ()

    @property
    def label(self) -> str:
        """The method with its options."""
        return label_of(self.request.method, self.request.method_options)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A published figure and ours.

    Attributes:
        method: with its options. network: options of the workload that the figure names.
        nodes: of our runs; None for a figure that needs none. what: the quantity.
        published: None if the paper gives no number. published_text: for readers.
        ours: over the seeds that trained; infinite for a miss; None without such seeds.
        ours_text, spread_text: for readers; the spread over seeds is empty for fewer than two.
        planned, trained, reached: seeds of the experiment, those that are done, and those that reached the level;
            0 for a figure that needs no run.
        rough: whether a seed reached the level before its first evaluation, so that its time is interpolated from
            step 0.
        aspects: what differs, beside the differences of the whole table.
    """

    method: str
    network: str
    nodes: int | None
    what: str
    published: float | None
    published_text: str
    ours: SeedMedian | None
    ours_text: str
    planned: int = 0
    trained: int = 0
    reached: int = 0
    spread_text: str = ""
    rough: bool = False
    aspects: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Ours over the published one; None unless both are numbers above 0."""
        if self.ours is None or not self.published or not 0 < self.ours.median < float("inf"):
            return None
        return self.ours.median / self.published


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a measure.

    Attributes:
        rows: of the main table. notes: lines of its footer. cautions: warnings of its footer.
        tables, plots: further ones. differences: those that the measure itself brings.
        problems: a line for each run that is left out.
    """

    rows: tuple[Compared, ...]
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()


class Measure(Protocol):
    """A way to make our figures."""

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """Published figures beside those of `subjects`, of which some may lack runs.

        Raises:
            UserError: if the published figures are unreadable.
        """


@dataclass(frozen=True, kw_only=True)
class Extent:
    """An experiment at one scale.

    Attributes:
        cells: those to train; none for a figure that needs no run.
        measure: makes our figures of them.
        differs: differences from the published runs.
        needs_data: whether the workload's own stand-in for data teaches nothing, so that --data is required.
    """

    measure: Measure
    cells: tuple[Cells, ...] = ()
    differs: tuple[Difference, ...] = ()
    needs_data: bool = False

    @property
    def workloads(self) -> tuple[str, ...]:
        """The workloads of its cells, each once."""
        return tuple(dict.fromkeys(cells.suite.workload for cells in self.cells))

    def needed(self, data: Collection[str]) -> str:
        """The options for the data that it lacks beside those of the workloads `data`; empty if it lacks none."""
        missing = [workload for workload in self.workloads if self.needs_data and workload not in data]
        return " ".join(f"--data {workload}=DIR" for workload in missing)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper. name: as `--only` takes it. title: for readers. at: the scales that it has."""

    name: str
    title: str
    at: Mapping[Scale, Extent]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper. name: on the command line. title: for readers, with its source."""

    name: str
    title: str
    experiments: tuple[Experiment, ...] = ()
