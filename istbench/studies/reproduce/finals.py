"""Final values of a metric beside those of a paper."""

from collections.abc import Sequence

import msgspec

from istbench.report.tables.numbers import metric_value
from istbench.studies.reproduce.figures import Figure, read_rows
from istbench.studies.reproduce.matching import beside, node_differences, published_notes, row_of
from istbench.studies.reproduce.paper import PUBLISHED, Compared, Comparison, Subject
from istbench.studies.reproduce.values import estimate_of, finals_of, range_text


class Finals(msgspec.Struct, frozen=True, kw_only=True, tag="finals"):
    """Published final values of metrics. A figure that names no options stands beside every row of its method.

    Attributes:
        sources: names of the papers whose figures count. names: ours of methods that the paper calls otherwise.
    """

    sources: tuple[str, ...]
    names: dict[str, str] = {}

    def compare(self, subjects: Sequence[Subject]) -> Comparison:
        """See `Measure.compare`."""
        pairs = [
            (figure, one)
            for figure in read_rows(PUBLISHED / "figures.csv", Figure)
            if figure.paper in self.sources and figure.value is not None
            for one in subjects
            if beside(figure, one, self.names)
        ]
        budgets = {run.header.budget for _, one in pairs for run in one.runs}
        trained = (f"Our budgets: {', '.join(sorted(budgets))}.",) if budgets else ()
        return Comparison(
            rows=tuple(self._row(figure, one) for figure, one in pairs),
            notes=(*trained, *published_notes(figure for figure, _ in pairs)),
            differences=tuple(node_differences(pairs)),
        )

    def _row(self, figure: Figure, subject: Subject) -> Compared:
        assert figure.value is not None
        values = finals_of(subject, figure.metric)
        ours = estimate_of(values)
        known = figure.method not in self.names
        return row_of(
            figure,
            subject,
            method=subject.label if known else f"{subject.label} ({figure.method})",
            what=f"final {figure.metric}",
            published=figure.value,
            published_text=f"{figure.value:g}",
            ours=ours,
            ours_text="not trained" if ours is None else metric_value(ours.median),
            trained=len(values),
            reached=len(values),
            spread_text=range_text(ours, metric_value),
        )
