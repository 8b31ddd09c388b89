"""Recorded runs as tables for notebooks: runs, curves, times to a target, replays, maps, the answer, a page."""

import functools
import html
import io
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istbench.api.arguments import from_python, in_python, texts
from istbench.api.replaying import map_latencies, named_code, redealing, replaying
from istbench.api.show import write_page_of
from istbench.base.decode import convert
from istbench.base.errors import UserError, printable, shown
from istbench.base.files import is_there
from istbench.base.options.data_source import DataSource
from istbench.base.options.defaults import BASELINE, DEFAULT_CLUSTER
from istbench.base.options.numbers import Level, Nodes
from istbench.base.shipped import EXAMPLE, example_results
from istbench.base.units import number_or, parse_bandwidth, parse_time
from istbench.cluster.profile import ClusterProfile, load_profile, select_clusters
from istbench.report.groups import RunGroup
from istbench.report.output.formats import left_out, print_results
from istbench.report.page import PAGE_BANDWIDTHS
from istbench.report.report import Report, build_report, build_report_on_clusters, select_runs
from istbench.report.tables.table import Table
from istbench.results.frame import frame_of, runs_frame
from istbench.results.load import Run, load_runs
from istbench.results.stats import median

if TYPE_CHECKING:
    import pandas as pd

MAP_BANDWIDTHS = ("10mbit", "30mbit", "100mbit", "300mbit", "1gbit", "3gbit", "10gbit")
"""Columns of a map, unless the user names others."""

Bandwidths = str | float | Sequence[str | float]
"""Bits/s, as a number or a text such as `1gbit`; one or several."""
Times = str | float | Sequence[str | float]
"""Seconds, as a number or a text such as `20ms`; one or several."""


@dataclass(frozen=True, kw_only=True)
class _Replay:
    clusters: Mapping[str, Sequence[ClusterProfile]]
    nodes: tuple[int, ...] = ()
    plugins: tuple[str, ...] = ()


class Results:
    """The runs in a results directory, as measured, or as replayed on clusters (`replay`).

    A notebook shows the answer and the table. All frames are pandas', with units in the names of their columns.

    Attributes:
        path: the results directory. failures: a line for each reason why cells of `compare` failed.
    """

    @from_python
    def __init__(
        self,
        path: str | Path = "results",
        *,
        cells: Mapping[str, DataSource | None] | Iterable[str] | None = None,
        failures: Sequence[str] = (),
        workload: str | None = None,
        metric: str | None = None,
        baseline: str = BASELINE,
        replay: _Replay | None = None,
    ) -> None:
        self.path, self.failures = Path(path), tuple(failures)
        self._sources = dict(cells) if isinstance(cells, Mapping) else {}
        self._cells = None if cells is None else tuple(cells)
        self._chosen: dict[str, Any] = {"workload": workload, "metric": metric, "baseline": baseline}
        self._replay = replay
        self._runs()  # a wrong folder or name is refused here

    def _runs(self) -> list[Run]:
        runs, chosen = load_runs(self.path, self._cells)[0], self._chosen
        return select_runs(runs, self.path, workload=chosen["workload"], metric=chosen["metric"], levels=())

    @property
    def runs(self) -> "pd.DataFrame":
        """A row for each run: cell, status, workload, method, nodes, seed, steps, seconds, bytes, final metric."""
        return runs_frame(self._runs())

    @property
    def curves(self) -> "pd.DataFrame":
        """A row for each evaluation of each run; of replayed results also `cluster_s` on the first cluster."""
        profile = None if self._replay is None else next(iter(self._replay.clusters.values()))[0]
        with replaying():
            return frame_of(self._runs(), None if profile is None else {"cluster_s": profile})

    @from_python
    def time_to(self, target: float) -> "pd.DataFrame":
        """A row for each method on each number of nodes: its seconds to the level `target`, the fastest first.

        `seconds` is the median over seeds, and infinite if at least half of them missed. `low_s` and `high_s` are
        its interval; `reached` of `seeds` reached it. `sent_to_target_mb` is what the busiest node sent until then.
        """
        import pandas as pd

        level = _level(target)
        rows = [row for group in self._report((level,)).groups for row in _times(group, level)]
        frame = pd.DataFrame(rows, columns=_TIME_COLUMNS)
        by = ["workload", "clock", "cluster", "seconds"]
        return frame.sort_values(by, kind="stable", ignore_index=True)

    @from_python
    def replay(
        self,
        cluster: str | Sequence[str] = DEFAULT_CLUSTER,
        *,
        bandwidth: Bandwidths = (),
        latency: Times = (),
        nodes: int | Sequence[int] = (),
        plugins: Sequence[str | Path] = (),
    ) -> "Results":
        """The same runs on other clusters. Trains nothing; see `istbench replay`.

        Args:
            cluster: Names (`istbench list clusters`) or files.
            bandwidth: Of the links, in place of those of the cluster; one or several.
            latency: From host to host, one way, in place of that of the cluster; one or several.
            nodes: Also numbers of nodes that were never run.
            plugins: The code of such runs.
        """
        names, counts = [cluster] if isinstance(cluster, str) else list(cluster), _counts(nodes)
        _, files = named_code(None, texts(plugins), needed=bool(counts))
        clusters = select_clusters(names, *_links(bandwidth, latency))
        if not clusters:
            raise UserError("no cluster: name at least one")
        replay = _Replay(clusters=clusters, nodes=counts, plugins=files)
        return Results(
            self.path, cells=self._sources or self._cells, failures=self.failures, replay=replay, **self._chosen
        )

    @from_python
    def map(
        self,
        cluster: str = DEFAULT_CLUSTER,
        *,
        target: float | None = None,
        bandwidth: Bandwidths = MAP_BANDWIDTHS,
        latency: Times = (),
        by: str = "nodes",
        nodes: int | Sequence[int] = (),
        plugins: Sequence[str | Path] = (),
    ) -> "pd.DataFrame":
        """The first method at each bandwidth and on each number of nodes, a row each; see `istbench map`."""
        import pandas as pd

        from istbench.report.map import build_maps

        counts = _counts(nodes)
        _, files = named_code(None, texts(plugins), needed=bool(counts))
        bandwidths, latencies = _links(bandwidth, latency)
        families = select_clusters([cluster], bandwidths, map_latencies(by, latencies))
        chosen = {name: value for name, value in self._chosen.items() if name != "baseline"}
        with replaying() as tell:
            maps, _ = build_maps(
                self.path,
                families,
                by=by,
                cluster=load_profile(cluster).name,
                target=None if target is None else _level(target),
                nodes=counts,
                redeal=redealing(files) if counts else None,
                cells=self._cells,
                tell=tell,
                **chosen,
            )
        return pd.DataFrame([record for one in maps for record in one.records()])

    def answer(self) -> str:
        """Who is the first to the hardest target that somebody reached, among whom, and how sure that is."""
        return "\n".join(self._report().answers)

    @from_python
    def fails(self, condition: str, baseline: "Results | None" = None) -> list[str]:
        """A line for each row that meets `condition` beyond doubt, as `istbench compare --fail-if` does.

        condition: such as `time_to(0.77) > 1.2 * baseline`, paired by seed with the results `baseline`.
        """
        from istbench.report.fail_if import check_all, parse_condition

        asked = parse_condition(condition, "condition")
        if asked.of_baseline and baseline is None:
            raise UserError(f"condition {shown(condition)} has a baseline: give its results beside it")
        before = () if baseline is None else baseline._report().groups
        found, lacking = check_all([asked], self._report().groups, before)
        for line in lacking:
            warnings.warn(in_python(line), stacklevel=2)
        return [one.sentence for one in found if one.verdict == "held"]

    @from_python
    def page(self, file: str | Path) -> Path:
        """Write one self-contained page with answers, tables, charts and settings to `file`; returns it."""
        if self._replay is not None:
            report = self._report()
        else:
            cluster = select_clusters([DEFAULT_CLUSTER])[DEFAULT_CLUSTER][0]
            report = self._measured(cluster=cluster, bandwidths=PAGE_BANDWIDTHS)
        write_page_of(report, self.path, Path(file))
        return Path(file)

    def __len__(self) -> int:
        return len(self._runs())

    def __repr__(self) -> str:
        text, report = io.StringIO(), self._report()
        print_results(report, text, explain=False)
        return "\n".join([text.getvalue().rstrip(), *left_out(report), *self.failures])

    def _repr_html_(self) -> str:
        report = self._report()
        lines = [f"<p>{_escaped(line)}</p>" for line in (*report.answers, *left_out(report), *self.failures)]
        return "\n".join([*lines, *map(table_html, report.overview or report.tables)])

    def _report(self, levels: tuple[float, ...] = ()) -> Report:
        """The report on the runs that are there now, built anew only if one has changed."""
        runs = self._runs()
        return self._built(levels, tuple(map(_seen, runs)))

    @functools.lru_cache(maxsize=8)  # noqa: B019  (few results live in a notebook)
    def _built(self, levels: tuple[float, ...], _runs: tuple[object, ...]) -> Report:
        if self._replay is None:
            return self._measured(levels=levels)
        with replaying() as tell:
            return build_report_on_clusters(
                self.path,
                self._replay.clusters,
                cells=self._cells,
                levels=levels,
                nodes=self._replay.nodes,
                redeal=redealing(self._replay.plugins) if self._replay.nodes else None,
                tell=tell,
                **self._chosen,
            )

    def _measured(self, **asked: Any) -> Report:
        """The report on the runs as measured; `asked` are as in `build_report`."""
        with replaying() as tell:
            return build_report(
                self.path, cells=self._cells, sources=self._sources, tell=tell, **asked, **self._chosen
            )


@from_python
def load(
    path: str | Path = "results",
    *,
    workload: str | None = None,
    metric: str | None = None,
    baseline: str = BASELINE,
) -> Results:
    """The runs in results directory `path`.

    Args:
        path: The results directory. `example` stands for the results that istbench brings along, unless a directory
            has this name.
        workload: Only its runs.
        metric: The metric to compare, in place of that of the workload.
        baseline: The row that speed-ups compare with, as `istbench report --baseline` has it.

    Raises:
        UserError: if there are no runs.
    """
    own = str(path) == EXAMPLE and not is_there(Path(path))
    results = example_results() if own else path
    return Results(results, workload=workload, metric=metric, baseline=baseline)


_TIME_COLUMNS = (
    "workload", "method", "nodes", "seconds", "low_s", "high_s", "reached", "seeds", "sent_to_target_mb", "dollars",
    "clock", "cluster", "target", "metric", "machine", "data", "budget", "batch_size",
)  # fmt: skip


def _times(group: RunGroup, level: float) -> Iterable[dict[str, Any]]:
    for row in group.contenders:
        found, spent = row.time(level), group.dollars(row, row.time(level).median)
        yield {
            "workload": group.workload_label,
            "method": row.name,
            "nodes": row.nodes,
            "seconds": found.median,
            "low_s": found.low,
            "high_s": found.high,
            "reached": found.reached,
            "seeds": found.seeds,
            "sent_to_target_mb": median(row.megabytes(level).values()),
            "dollars": math.nan if spent is None else spent,
            "clock": group.clock,
            "cluster": group.profile.name if group.profile else "",
            "target": level,
            "metric": group.metric.name,
            "machine": group.machine,
            "data": group.source.seen,
            "budget": group.budget,
            "batch_size": group.batch_size,
        }


def _seen(run: Run) -> tuple[object, ...]:
    """What changes with a run: also after `--again` and `istbench retrace`."""
    trace = run.directory.trace
    recorded = trace.stat().st_mtime_ns if trace.is_file() else 0
    header = run.header
    return header.cell, header.status, header.started_at, len(run.curve.evaluations), recorded


def table_html(table: Table) -> str:
    """`table` as HTML, with all texts escaped."""
    head = "".join(f"<th>{_escaped(column.title)}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_escaped(entry.text)}</td>" for entry in row) + "</tr>" for row in table.rows
    )
    rows = rows or f"<tr><td>{_escaped(table.empty)}</td></tr>"
    footer = "".join(f"<p><small>{_escaped(line)}</small></p>" for line in table.footer)
    caption = f"<caption>{_escaped(table.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{footer}"


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _level(target: float) -> float:
    return convert(float(target), Level, lambda _: "target")


def _counts(nodes: int | Sequence[int]) -> tuple[Nodes, ...]:
    given = [nodes] if isinstance(nodes, int) else list(nodes)
    return tuple(convert(given, list[Nodes], lambda _: "nodes"))


def _links(bandwidth: Bandwidths, latency: Times) -> tuple[list[float], list[float]]:
    """Bandwidths in bits/s and latencies in seconds."""
    each = [[given] if isinstance(given, str | int | float) else given for given in (bandwidth, latency)]
    return (
        [number_or(parse_bandwidth, one, "bandwidth") for one in each[0]],
        [number_or(parse_time, one, "latency") for one in each[1]],
    )
