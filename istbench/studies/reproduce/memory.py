"""Memory of a node, planned, beside the runs that a paper trained and those that failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from istbench.base.options.run import RunRequest
from istbench.cluster.estimate import GIB, CellPlan
from istbench.cluster.profile import ClusterProfile, load_profile
from istbench.report.tables.numbers import number
from istbench.report.tables.table import ColumnOf, Entry, Table, column, table_of
from istbench.studies.reproduce.figures import Figure, network_words, published
from istbench.studies.reproduce.paper import Compared, Comparison, Difference, Subject


class PlannedMemory(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """The networks that fit on a node, by plan, without a run.

    Attributes:
        source: name of the paper whose figures count. cluster: profile of its machines. nodes: its number of them.
        optimizer: of the main table. further: (method, optimizer) pairs that the paper lacks, for a further table.
    """

    source: str
    cluster: str
    nodes: int
    optimizer: str
    further: tuple[tuple[str, str], ...] = ()

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        profile = load_profile(self.cluster)
        # One figure for each cell: several metrics of a run say the same about its memory.
        figures = {
            (figure.method, network_words(figure)): figure for figure in reversed(published(Figure, (self.source,)))
        }
        own = list(reversed(figures.values()))
        networks = list(dict.fromkeys((figure.workload, tuple(figure.options.items())) for figure in own))
        planned = [
            _Plan(method=method, optimizer=optimizer, plan=_plan(workload, dict(options), method, optimizer, self))
            for method, optimizer in self.further
            for workload, options in networks
        ]
        return Comparison(
            rows=tuple(self._row(figure, profile) for figure in own),
            notes=(
                f"Planned, not trained: `istbench plan` gives the same bytes. A node of {profile.name} has "
                f"{profile.memory_gib:g} GiB for a model; {self.optimizer} on {self.nodes} nodes.",
                f"The paper does not publish its optimizer; with {self.optimizer} it is an assumption.",
            ),
            tables=(_further_table(planned, profile, self.nodes),) if planned else (),
            differences=(Difference(aspect="plan", text="ours is a plan, theirs are runs."),),
        )

    def _row(self, figure: Figure, profile: ClusterProfile) -> Compared:
        plan = _plan(figure.workload, figure.options, figure.method, self.optimizer, self)
        trained = figure.value is not None
        fits = plan.fits is True
        return Compared(
            method=f"{figure.method} optimizer={self.optimizer}",
            network=network_words(figure),
            nodes=self.nodes,
            what=f"fits on a node of {profile.name}",
            published=None,
            published_text="trained" if trained else "failed",
            ours=None,
            ours_text=f"{_fits_words(plan)}, {_gib(plan):.2f} GiB{'' if trained == fits else ': differs'}",
        )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    method: str
    optimizer: str
    plan: CellPlan


def _plan(workload: str, options: dict[str, str], method: str, optimizer: str, measure: PlannedMemory) -> CellPlan:
    from istbench.plan.planner import make_plan  # torch, which other measures do not need

    return make_plan(
        RunRequest(
            workload=workload,
            method=method,
            nodes=measure.nodes,
            workload_options=options,
            method_options={"optimizer": optimizer},
        ),
        load_profile(measure.cluster),
        limits=False,
    )


def _gib(plan: CellPlan) -> float:
    assert plan.memory is not None
    return plan.memory.total / GIB


def _fits_words(plan: CellPlan) -> str:
    return "fits" if plan.fits else f"no, {_gib(plan) - plan.cluster.memory_bytes / GIB:.1f} GiB short"


def _further_table(planned: Sequence[_Plan], profile: ClusterProfile, nodes: int) -> Table:
    return table_of(
        _COLUMNS,
        planned,
        title=f"Planned memory of a node of {profile.name}, {nodes} nodes: other methods and optimizers",
        footer=("A round of ist has several local steps: divide its bytes and seconds by them.",),
        keys=3,
    )


def _entry(value: float | None, text: Callable[[float], str]) -> Entry:
    """A number that may be unknown."""
    return Entry(text="" if value is None else text(value), value=value)


_COLUMNS: tuple[ColumnOf[_Plan], ...] = (
    column("method", "method", lambda row: row.method, align="left"),
    column("optimizer", "optimizer", lambda row: row.optimizer, align="left"),
    column("workload", "network", lambda row: row.plan.workload, align="left"),
    column("memory_gib", "GiB a node", lambda row: Entry(text=f"{_gib(row.plan):.2f}", value=_gib(row.plan))),
    column("fits", "fits", lambda row: Entry(text=_fits_words(row.plan), value=row.plan.fits), align="left"),
    column(
        "sent_gb",
        "GB sent a round",
        lambda row: _entry(None if row.plan.sent is None else row.plan.sent / 1e9, "{:.2f}".format),
    ),
    column("round_s", "s a round", lambda row: _entry(row.plan.seconds, number)),
    column("round_steps", "its steps", lambda row: row.plan.round_steps),
)
