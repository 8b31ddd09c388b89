"""The rows of the study that `dealing.py` writes: cells of `ist` and of its baselines, over their seeds."""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from istbench.base.errors import UserError
from istbench.base.options.options import option_text
from istbench.cluster.trace_file import load_trace
from istbench.report.answer import replay_error
from istbench.report.phrases import joined
from istbench.results.load import Run
from istbench.results.stats import SeedMedian, median, seed_median

CLUSTER = "m5.2xlarge"
BANDWIDTHS = (1e8, 1e9, 1e10)
"""Of the table and the picture, bits/s."""
SWEEP = (1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10)
"""Of the search for the first method."""
BASELINES = ("local_sgd", "ddp")
DEALING = ("ist", "streaming_ist")
"""Methods that deal units."""
STUDIED = ("deal", "coverage", "moving", "warmup_rounds")
"""Options of methods that tell cells apart. All other options must be equal."""
OF_RUNS = ("amp", "channels_last", "compile", "eval_every", "held_out")
"""Options of runs that must be equal too."""
Place = tuple[float, float]
"""A level and a bandwidth in bit/s."""


class Cell(NamedTuple):
    nodes: int
    method: str
    deal: str
    coverage: int
    moving: float
    warmup_rounds: int
    widen: int

    @property
    def label(self) -> str:
        """The method and its options. `deal` is always named, because workloads may have other defaults."""
        usual = {"coverage": 1, "moving": 1, "warmup_rounds": 0, "widen": 1}
        given = [f"{name}={getattr(self, name):g}" for name, value in usual.items() if getattr(self, name) != value]
        return " ".join([self.method, *([f"deal={self.deal}"] if self.of_ist else []), *given])

    @property
    def of_ist(self) -> bool:
        """Whether the method deals units."""
        return self.method in DEALING


@dataclass(frozen=True, kw_only=True)
class Row:
    """The seeds of a cell.

    Attributes:
        finals: final accuracies by seed; the worst value of the metric for a diverged run.
        megabytes: that the busiest node sends in a round. operations: of a local step; None if unknown. step_ms:
            measured. All are medians.
        warming: the share of the local steps before the first deal.
        seconds: by place, those of the seeds; infinite for a miss. A seed that reached the level counts only if its
            run has a trace.
        error: the largest one of replays of the method in a lab, as a share; 0 if unknown.
    """

    cell: Cell
    finals: tuple[float, ...]
    megabytes: float
    operations: float | None
    step_ms: float
    seconds: Mapping[Place, tuple[float, ...]]
    warming: float = 0.0
    error: float = 0.0

    @property
    def final(self) -> float:
        """The median of the final accuracies."""
        return median(self.finals)

    @property
    def seeds(self) -> str:
        """`1 seed`, `3 seeds`."""
        return f"{len(self.finals)} seed{'s' if len(self.finals) > 1 else ''}"

    def time(self, place: Place) -> SeedMedian | None:
        """The seconds over seeds; None if no seed is known."""
        return seed_median(own) if (own := self.seconds[place]) else None


def check_alike(runs: Sequence[Run]) -> None:
    """Check that `runs` differ only in the cell and the seed.

    Raises:
        UserError: naming two runs that differ in something else, or that are one cell with one seed.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        names[run.header.method] |= options_of(run).keys()
    workload_names = {name for run in runs for name in kind_of(run)}
    first: dict[tuple[str, int], tuple[str, str]] = {}
    seeds: dict[tuple[Cell, int], str] = {}
    for run in runs:
        name = run.header.cell
        # A method lacks options of others. Options that only some runs of a method record are at their default.
        own = {option: options_of(run).get(option, "its default") for option in names[run.header.method]}
        own |= {option: kind_of(run).get(option, "its default") for option in workload_names}
        for option, value in sorted(own.items()):
            # By default, evaluations come after a share of the steps, which are fewer on more nodes.
            nodes = run.header.config.nodes if option == "eval_every" else 0
            known, other = first.setdefault((option, nodes), (value, name))
            if value != known:
                raise UserError(
                    f"{name} has {option} {value}, and {other} has {known}. Runs of a page differ only in "
                    f"{joined(STUDIED)}, widen, nodes and seeds; give the others a directory of their own"
                )
        twin = seeds.setdefault((cell_of(run), run.header.seed), name)
        if twin != name:
            raise UserError(f"{twin} and {name} are one cell with seed {run.header.seed} twice; delete one of them")


def kind_of(run: Run) -> dict[str, str]:
    """The facts that all runs of a page share, by name: workload, budget, data, and options of workload and run."""
    head, config = run.header, run.header.config
    options = {name: value for name, value in config.workload_options.items() if name != "widen"}
    return {
        "workload": head.workload,
        "budget": head.budget,
        "batch size": str(head.batch_size),
        "data": head.data_source.fingerprint,
        **{name: option_text(value) for name, value in options.items()},
        **{name: str(getattr(config, name)) for name in OF_RUNS},
    }


def options_of(run: Run) -> dict[str, str]:
    """The options of the method, those at their default too, without those of the study."""
    options = run.header.config.method_options
    return {name: option_text(value) for name, value in options.items() if name not in STUDIED}


def local_steps_of(runs: Sequence[Run]) -> int:
    """The local steps of a round.

    Raises:
        UserError: if no run has rounds.
    """
    for run in runs:
        if steps := int(run.header.config.method_options.get("local_steps", 0)):
            return steps
    raise UserError("no finished run has the option local_steps, so the length of a round is unknown")


def rows_of(
    runs: Sequence[Run],
    diverged: Sequence[Run],
    on_clusters: Sequence[Sequence[Run]],
    levels: Sequence[float],
    steps: int,
) -> list[Row]:
    """A row for each cell with a finished run, in their order.

    diverged: each is a miss of its cell. on_clusters: runs with a trace on each link of `SWEEP`. steps: of a round.
    """
    replays = {there[0].header.cell: there for there in zip(*on_clusters, strict=True)}
    misses = Counter(cell_of(run) for run in diverged)
    cells: dict[Cell, list[Run]] = defaultdict(list)
    for run in runs:
        cells[cell_of(run)].append(run)
    rows = [row_of(cell, own, replays, misses[cell], levels, steps) for cell, own in sorted(cells.items())]
    return [with_warmup(row, rows) for row in rows]


def row_of(
    cell: Cell,
    runs: Sequence[Run],
    replays: Mapping[str, Sequence[Run]],
    misses: int,
    levels: Sequence[float],
    steps: int,
) -> Row:
    """The row of a cell: its runs, and their replays by name and bandwidth. Its arithmetic is a subnet's."""
    results = [result for run in runs if (result := run.header.result) is not None]
    metric = runs[0].curve.metric
    traced = [run for run in runs if run.header.cell in replays]
    works = [work for run in traced if (work := load_trace(run.directory.trace).meta.work) is not None]

    def seconds(level: float, number: int) -> Iterator[float]:
        for run in runs:
            if run.reached(level) is None:
                yield math.inf
            elif run in traced:
                there = replays[run.header.cell][number].reached(level)
                assert there is not None  # the replay moves evaluations in time only
                yield there.seconds

    finals = [metric.worst if (final := run.curve.final()) is None else final for run in runs]
    return Row(
        cell=cell,
        finals=tuple(sorted([*finals, *[metric.worst] * misses])),
        megabytes=median([result.bytes_sent_per_node / result.steps * steps / 1e6 for result in results]),
        operations=median([work.operations for work in works]) if works else None,
        step_ms=median([1e3 * result.train_s / result.steps for result in results]),
        seconds={
            (level, bits): (*seconds(level, number), *[math.inf] * misses)
            for level in levels
            for number, bits in enumerate(SWEEP)
        },
        warming=min(1.0, cell.warmup_rounds * steps / results[0].steps),
        error=replay_error(replays[run.header.cell][0] for run in traced),
    )


def with_warmup(row: Row, rows: Sequence[Row]) -> Row:
    """`row` with the arithmetic of its warm-up, in which a local step is that of `local_sgd` on as many nodes."""
    if not row.warming or row.operations is None:
        return row
    whole = next(
        (
            other.operations
            for other in rows
            if (other.cell.method, other.cell.nodes, other.cell.widen)
            == ("local_sgd", row.cell.nodes, row.cell.widen)
        ),
        None,
    )
    operations = None if whole is None else row.warming * whole + (1 - row.warming) * row.operations
    return dataclasses.replace(row, operations=operations)


def cell_of(run: Run) -> Cell:
    """The cell of `run`, with the defaults of options that it leaves out."""
    config = run.header.config
    options = config.method_options
    deal = options.get("deal", ["all"])
    return Cell(
        config.nodes,
        config.method,
        deal if isinstance(deal, str) else ",".join(deal),
        int(options.get("coverage", 1)),
        float(options.get("moving", 1)),
        int(options.get("warmup_rounds", 0)),
        int(config.workload_options.get("widen", 1)),
    )


def accuracy_text(value: float) -> str:
    """An accuracy with three digits."""
    return "diverged" if math.isinf(value) else f"{value:.3f}"


def timed(rows: Sequence[Row]) -> list[Row]:
    """Rows whose seconds compare: those without warm-up rounds, which the replay takes for later rounds."""
    return [row for row in rows if not row.cell.warmup_rounds]
