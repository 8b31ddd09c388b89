"""A report as one page, as data: for each study its answers, tables, charts and cells on each clock."""

import dataclasses
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from istbench.base.decode import encode_own
from istbench.base.errors import UserError
from istbench.base.options.run import Lab
from istbench.cluster.profile import typed_bandwidth
from istbench.report.answer import Answer, answer, main_target
from istbench.report.groups import RunGroup, Sweep, by_study
from istbench.report.map import WinnerMap, winner_map
from istbench.report.palette import MethodStyle
from istbench.report.phrases import count_nodes, joined
from istbench.report.plots.over_time import Along, metric_over
from istbench.report.plots.plot import OF_FAULTS, Bars, Plot, contender_styles
from istbench.report.plots.shares import time_shares
from istbench.report.plots.time_to_target import time_by_bandwidth, time_by_nodes
from istbench.report.report import Report
from istbench.report.tables.comparison import comparison, comparison_to
from istbench.report.tables.crossings import crossings_table
from istbench.report.tables.group_columns import group_context
from istbench.report.tables.stalls import stall_words
from istbench.report.tables.table import Table
from istbench.report.targets import Target
from istbench.report.timeline.bars import round_charts
from istbench.results.header import Header
from istbench.results.load import Run

PAGE_BANDWIDTHS = (1e7, 1e8, 1e9, 1e10)
"""Bandwidths, bits/s, at which `report` and `compare` replay runs for a page."""

_ALL_PANELS = 100
# A page of more is too large for a mail, and slow to open.
_MOST_SETTINGS, _MOST_SEED_LINES = 400, 400
_MOST_NAMES = 5  # in the title


@dataclass(frozen=True, kw_only=True)
class AtTarget:
    """The answer and the table for one target; the target is None for runs that have none."""

    table: Table
    target: Target | None = None
    answer: Answer | None = None


@dataclass(frozen=True, kw_only=True)
class OnClock:
    """A study on one clock.

    clock: in words, such as `replayed seconds on m5.2xlarge`. by_target: the easiest target first. notes: lines
    below the main table. others: further tables. curves: over seconds. by_nodes: seconds to each target.
    shares: where the time goes. rounds: one round of each method. cluster: of the replay, if it is one.
    opens_on: the place in `by_target` of the target to open. has_asked: whether it is the one of the advice.
    """

    clock: str
    by_target: tuple[AtTarget, ...]
    notes: tuple[str, ...]
    others: tuple[Table, ...] = ()
    curves: Plot | None = None
    by_nodes: Plot | None = None
    shares: Bars | None = None
    rounds: tuple[Bars, ...] = ()
    cluster: str = ""
    opens_on: int = 0
    has_asked: bool = False


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """One run: a line about it, its command, its settings and environment, and its raw files as relative links."""

    name: str
    about: str
    command: str | None
    facts: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Comparable runs: one workload on one set of data, with one budget, on all clocks.

    styles: of each method, by name. elsewhere: curves over other axes than seconds. faults: seconds with faults
    over those without. by_bandwidth: seconds to target, with the nodes in words. maps: the first method by
    bandwidth and nodes, a map for each target.
    crossings: bandwidths where methods cross.
    """

    name: str
    styles: dict[str, MethodStyle]
    clocks: tuple[OnClock, ...]
    elsewhere: tuple[tuple[Along, Plot], ...] = ()
    faults: tuple[Plot, ...] = ()
    by_bandwidth: tuple[tuple[str, Plot], ...] = ()
    maps: tuple[WinnerMap, ...] = ()
    crossings: tuple[Table, ...] = ()
    cells: tuple[RunDetails, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """The advice as a part of a page: its paragraphs, each some lines under a heading, and all candidates.

    title: the question. outcome: as in `Answer`; `unsure` for a first that may be another. target, cluster: of the
    question.
    """

    title: str
    outcome: Literal["first", "unsure", "close", "nobody"]
    target: float
    cluster: str
    command: str
    paragraphs: tuple[tuple[str, tuple[str, ...]], ...]
    table: Table


@dataclass(frozen=True, kw_only=True)
class Page:
    """The page.

    problems: a line for each run that it leaves out. advice: of `istbench advise`, if there is one. estimate: the
    answer of `istbench estimate`, in place of one of runs.
    """

    title: str
    studies: tuple[Study, ...]
    problems: tuple[str, ...]
    advice: Section | None = None
    estimate: str = ""

    @property
    def opens_on(self) -> tuple[int, int]:
        """The study and the clock to open: with an advice, those to its target on its cluster with most runs."""
        if self.advice is None:
            return 0, 0
        asked = [
            (
                clock.has_asked,
                clock.cluster == self.advice.cluster,
                bool(clock.cluster),
                len(study.cells),
                -at,
                -place,
            )
            for at, study in enumerate(self.studies)
            for place, clock in enumerate(study.clocks)
        ]
        *_, at, place = max(asked, default=(0, 0))
        return -at, -place


def build_page(report: Report, file: Path, advice: Section | None = None) -> Page:
    """The page of `report` in `file`, from which links to raw files start. `advice` brings its own title."""
    sweeps: dict[str, list[Sweep]] = defaultdict(list)
    for sweep in report.sweeps:
        sweeps[sweep.groups[0].study].append(sweep)
    asked = None if advice is None else advice.target
    studies = by_study(report.groups)
    shown = tuple(_study(groups, sweeps[groups[0].study], report, file, asked) for groups in studies)
    return Page(
        title=_compared(report.groups) if advice is None else advice.title,
        studies=shown,
        problems=(*report.problems, *(line for groups in studies for line in _too_many(groups))),
        advice=advice,
    )


def _compared(groups: Sequence[RunGroup]) -> str:
    """The workloads, methods and nodes of finished runs: `speech: ddp and ist on 2 and 4 nodes`."""
    rows = [(group, row) for group in groups for row in group.competing]
    if not rows:
        return "No finished runs"
    workloads = _named([group.workload_label for group, _ in rows], "workloads")
    methods = _named([row.method for _, row in rows], "methods")
    nodes = sorted({row.nodes for _, row in rows})
    on = count_nodes(nodes[0]) if len(nodes) == 1 else f"{joined(map(str, nodes))} nodes"
    return f"{workloads}: {methods} on {on}"


def _named(names: Iterable[str], what: str) -> str:
    """The different `names`, or the number of `what` if they are many."""
    different = list(dict.fromkeys(names))
    return joined(different) if len(different) <= _MOST_NAMES else f"{len(different)} {what}"


def _too_many(groups: Sequence[RunGroup]) -> Iterable[str]:
    """A line for each thing of which the study of `groups` has too much for the page."""
    runs, lines = len(_runs(groups)), len(_widest(groups)[0].runs) if _widest(groups) else 0
    about = f"from the page of {groups[0].workload_label}"
    if lines > _MOST_SEED_LINES:
        yield f"{about}: the {lines:,} curves of single seeds; the medians and ranges of all rows are there"
    if runs > _MOST_SETTINGS:
        yield f"{about}: settings of {runs - _MOST_SETTINGS:,} of {runs:,} runs; each run.json has them"


def _study(
    groups: Sequence[RunGroup],
    sweeps: Sequence[Sweep],
    report: Report,
    file: Path,
    asked: float | None,
) -> Study:
    first = groups[0]
    clocks = [
        _on_clock(moved, report, asked)
        for group in groups
        for moved in (group, *([] if group.profile is not None or not group.contenders else [_on_wall(group)]))
    ]
    along: tuple[Along, ...] = ("steps", "traffic")
    curves = [(name, metric_over(group, name, _MOST_SEED_LINES)) for group in _widest(groups) for name in along]
    disturbed = {f"{group.stem}{OF_FAULTS}" for group in groups}
    return Study(
        name=f"{first.workload_label}: {first.source.seen}, {first.budget}, {first.batch_words}",
        styles={name: style for group in groups for name, style in contender_styles(group).items()},
        clocks=tuple(clocks),
        elsewhere=tuple(curves),
        faults=tuple(plot for plot in report.plots if plot.stem in disturbed),
        by_bandwidth=tuple(
            (f"{count_nodes(nodes)} on {sweep.cluster}", time_by_bandwidth(sweep, nodes, _ALL_PANELS))
            for sweep in sweeps
            for nodes in sweep.groups[0].nodes
        ),
        maps=tuple(
            found
            for sweep in sweeps
            for target in sweep.groups[0].targets
            if (found := winner_map([sweep], "nodes", sweep.cluster, target=target)) is not None
        ),
        crossings=tuple(crossings_table(sweep, report.baseline) for sweep in sweeps),
        cells=tuple(_cell(run, file) for run in _runs(groups)[:_MOST_SETTINGS]),
    )


def _widest(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The group with the most runs, whose learning curves by step are those of all clocks; none without runs."""
    with_runs = [group for group in groups if group.contenders]
    return [max(with_runs, key=lambda group: len(group.runs))] if with_runs else []


def _on_wall(group: RunGroup) -> RunGroup:
    contenders = [
        dataclasses.replace(row, runs=tuple(run.on_wall_clock() for run in row.runs)) for row in group.contenders
    ]
    return dataclasses.replace(group, contenders=tuple(contenders))


def _on_clock(group: RunGroup, report: Report, asked: float | None) -> OnClock:
    main = comparison(group, report.baseline)
    by_target = [
        AtTarget(
            target=target,
            answer=answer(group, target, report.baseline),
            table=comparison_to(group, target, report.baseline),
        )
        for target in group.targets
    ]
    context = group_context(group, report.baseline)
    advised = [target for target in group.targets if target.level == asked]
    opened = advised[0] if advised else main_target(group)
    return OnClock(
        clock=f"{group.clock_words} on {group.machine}",
        by_target=tuple(by_target) or (AtTarget(table=main),),
        notes=main.footer,
        others=tuple(table for table in report.tables if table.context == context and table.title != main.title),
        curves=metric_over(group, most_seeds=_MOST_SEED_LINES) if group.contenders else None,
        by_nodes=time_by_nodes(group) if group.targets and len(group.nodes) > 1 else None,
        shares=time_shares(group) if group.clock != "wall_s" else None,
        rounds=tuple(round_charts(group)) if group.clock != "wall_s" else (),
        cluster="" if group.profile is None else group.profile.name,
        opens_on=0 if opened is None else group.targets.index(opened),
        has_asked=opened in advised,
    )


def _runs(groups: Iterable[RunGroup]) -> list[Run]:
    """All runs, each once; without those that were never run."""
    seen: dict[str, Run] = {}
    for group in groups:
        for run in (*group.runs, *group.unfinished):
            if run.extrapolated_from is None:
                seen.setdefault(run.header.cell, run)
    return list(seen.values())


def _cell(run: Run, file: Path) -> RunDetails:
    header = run.header
    settings = msgspec.to_builtins(header.config, enc_hook=encode_own)
    plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    facts = {
        "status": header.status,
        "error": header.error or "",
        "data": f"{header.data_source.seen}, fingerprint {header.data_source.fingerprint[:16]}",
        "method options": _pairs(header.config.method_options),
        "workload options": _pairs(header.config.workload_options),
        "run": _pairs(plain),
        "machine": ", ".join(filter(None, [header.host.name, header.host.cores_words, header.host.machine])),
        "lab": header.host.lab or "",
        "versions": ", ".join(f"{name} {version}" for name, version in header.versions.items()),
        "source tree": "" if header.git is None else header.git.words,
        "version of the clock's rules": str(header.timing_rule),
        "started, finished": ", ".join(filter(None, [header.started_at, header.finished_at])),
        "parts that differ": "; ".join(run.changes),
        "stalls": stall_words(run) if run.stalls else "",
    }
    directory = run.directory
    return RunDetails(
        name=header.cell,
        about=f"{header.method_label}, {count_nodes(header.nodes)}, seed {header.seed}: {header.status}",
        command=rerun_command(header),
        facts=tuple((name, text) for name, text in facts.items() if text),
        files=tuple(
            (path.name, quote(os.path.relpath(path, file.parent)))
            for path in (directory.run_json, directory.events_jsonl, directory.trace)
            if path.exists()
        ),
    )


_EPOCHS = r"(\d{1,12}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?) epochs"


def rerun_command(header: Header) -> str | None:
    """The command line that trains the cell of `header` from the start; None if its options are no valid request.

    It has the value of every option of the method and the workload, also of those that the user left out. So it
    names the same cell after a change of defaults. It has the --data that the user typed; the content of the data
    must be equal.
    """
    config = header.config
    epochs = re.match(_EPOCHS, header.budget)
    length = {"steps": None, "epochs": float(epochs[1])} if epochs else {}
    try:
        request = config.request(data=Path(header.typed_data) if header.typed_data else None, **length)
    except UserError:
        return None
    restarts = ["--restarts=10"] if config.elastic is not None else []  # `run` refuses to be elastic without
    words = [*request.arguments(), *restarts, "--again"]
    lab = [] if config.lab is None else [*_lab_words(config.lab, config.nodes), "--"]
    return shlex.join(["istbench", *lab, *words])


def _lab_words(lab: Lab, nodes: int) -> list[str]:
    words = ["lab", f"--nodes={nodes}", f"--bandwidth={typed_bandwidth(lab.bandwidth)}"]
    if lab.latency_s:
        words.append(f"--latency={lab.latency_s * 1e6:g}us")
    if lab.hosts is not None:
        words += [f"--host-nodes={lab.hosts.nodes}", f"--inside={typed_bandwidth(lab.hosts.bandwidth)}"]
    if lab.uplink is not None:
        words += [f"--racks={-(-nodes // lab.uplink.nodes)}", f"--uplink={typed_bandwidth(lab.uplink.bandwidth)}"]
    return words


def _pairs(values: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
