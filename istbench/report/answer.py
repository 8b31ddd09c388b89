"""The answer of a table in a few sentences: the first method at a target, its lead, its cost and their error."""

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from istbench.base.errors import UserError
from istbench.base.options.defaults import BASELINE
from istbench.base.units import counted
from istbench.report.baseline import pair
from istbench.report.groups import Contender, RunGroup
from istbench.report.phrases import checked_methods, joined, largest_error
from istbench.report.tables.numbers import interval, metric_value, number, with_interval
from istbench.report.targets import Target
from istbench.results.load import Run
from istbench.results.stats import SeedMedian, median, seed_median, speed_up


@dataclass(frozen=True, kw_only=True)
class RowTime:
    """A row's time to a target."""

    contender: Contender
    target: Target

    @cached_property
    def seconds(self) -> SeedMedian:
        return self.contender.time(self.target.level)

    @cached_property
    def error(self) -> float:
        """The largest error of replays of its method in a lab, as a share; 0 if unknown or not replayed."""
        return replay_error(self.contender.runs)

    @property
    def order(self) -> tuple[float, int, float]:
        """Sorts the soonest first; of rows with an infinite median, that with more seeds at the target."""
        missed = math.isinf(self.seconds.median)
        return self.seconds.median, -self.seconds.reached if missed else 0, self.seconds.low

    @property
    def name(self) -> str:
        """`ist on 4 nodes`."""
        never_run = self.contender.extrapolated_from is not None
        return f"{self.contender.placed}{' (never run)' if never_run else ''}"

    @property
    def time(self) -> str:
        """`12.3 s [11.9–12.8]`, or `more than 30.0 s [12.0–∞]` if half of the seeds missed."""
        missed = math.isinf(self.seconds.median)
        median = f"more than {number(self.contender.trained().median)}" if missed else number(self.seconds.median)
        return f"{median} s{interval(self.seconds, number)}"

    @property
    def seeds(self) -> str:
        """`3 of 3 seeds`."""
        return f"{self.seconds.reached} of {counted(self.seconds.seeds, 'seed')}"

    def overlaps(self, slower: "RowTime") -> bool:
        """As `ranges_overlap`."""
        return ranges_overlap(self.seconds, self.error, slower.seconds, slower.error)

    def over(self, faster: "RowTime") -> float | None:
        """Its seconds over those of `faster`: the median over pairs of equal seeds, else of medians."""
        if faster.seconds.median == 0:
            return None
        own, others = (row.contender.seconds(self.target.level) for row in (self, faster))
        paired = speed_up(own, others) if own.keys() == others.keys() else None
        if paired is not None and paired.ratio is not None:
            return paired.ratio.median
        return self.seconds.median / faster.seconds.median


def replay_error(runs: Iterable[Run]) -> float:
    """The largest error of replays of the methods of `runs` in a lab, as a share; 0 if unknown or not replayed."""
    return largest_error(run.cluster for run in runs if run.cluster is not None)


def ranges_overlap(faster: SeedMedian, error: float, slower: SeedMedian, slower_error: float) -> bool:
    """Whether the ranges over seeds of two times overlap, each first widened by the error of its replays.

    A range of misses alone overlaps with none.
    """
    return math.isfinite(slower.low) and slower.low * (1 - min(slower_error, 1)) <= faster.high * (1 + error)


def row_times(rows: Iterable[Contender], target: Target) -> list[RowTime]:
    """The times of `rows` to `target`, the soonest first."""
    return sorted((RowTime(contender=row, target=target) for row in rows), key=lambda row: row.order)


Outcome = Literal["first", "close", "nobody"]

_FIGURE = re.compile(r"\d+(?:\.\d+)?")
_EXPECTED = ("ddp", "local_sgd", "diloco")  # by readers, among the contenders
_FEWEST_SEEDS = 3
_WITHOUT_CORE = 0.2  # on an idle machine it is up to a tenth


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer for one target.

    outcome: one method is first, several are too close to call, or nobody reached the target.
    lead: the answer: who, among whom, how sure, measured or replayed. details: the speed-up and the costs.
    basis: a sentence each about the contenders, the clock, its range, unequal tuning and the data. doubts: reasons
    to doubt the answer, in a few words each.
    """

    outcome: Outcome
    lead: tuple[str, ...]
    details: tuple[str, ...] = ()
    basis: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    @property
    def doubt(self) -> str:
        """The doubts in a sentence; empty for a sure answer."""
        return f"Not sure: {'; '.join(self.doubts)}." if self.doubts else ""

    @property
    def verdict(self) -> tuple[str, ...]:
        """The answer, then its details."""
        return self.lead + self.details


def main_target(group: RunGroup, rows: Sequence[Contender] | None = None) -> Target | None:
    """The hardest target that the median of a row reached, or else the easiest one; None without targets.

    rows: by default those that compete.
    """
    rows = group.competing if rows is None else rows
    for target in reversed(group.targets):
        if any(math.isfinite(row.time(target.level).median) for row in rows):
            return target
    return next(iter(group.targets), None)


def answer_lines(studies: Sequence[Sequence[RunGroup]], baseline: str = BASELINE) -> tuple[str, ...]:
    """The first lines at a terminal: the answer on each clock of each of `studies`, see `by_study`."""
    lines = []
    names = _study_names(studies)
    for groups, name in zip(studies, names, strict=True):
        said = set[str]()
        for group in groups:
            target = main_target(group)
            if target is None:
                why = "they have no target" if group.contenders else "no run has finished"
                lead: tuple[str, ...] = (f"No run is the first: {why}.",)
            else:
                found = answer(group, target, baseline)
                lead = (*found.lead, *([found.doubt] if found.doubt else []))
            # The same on several clocks is said once.
            new = [lead[0], *(sentence for sentence in lead[1:] if sentence not in said)]
            said.update(new)
            lines.append(" ".join([*([f"{name}:"] if len(studies) > 1 else []), *new]))
    return tuple(dict.fromkeys(lines))


def _study_names(studies: Sequence[Sequence[RunGroup]]) -> list[str]:
    """The workload of each study; of those with the same one, also the budget and the batch size, then the data."""
    names = [groups[0].workload_label for groups in studies]
    for part in (lambda of: f"{of.budget}, batch size {of.batch_size}", lambda of: of.source.seen):
        names = [
            name if names.count(name) == 1 else f"{name}, {part(groups[0])}"
            for name, groups in zip(names, studies, strict=True)
        ]
    return names


def answer(group: RunGroup, target: Target, baseline: str = BASELINE) -> Answer:
    """The answer of the table of `group`, which has finished runs, for `target`.

    Two rows are too close to call if their ranges over seeds overlap, also after widening the range of a replay by
    its largest error in a lab. The second may be a row of which most seeds missed it. A control
    (`RunGroup.is_control`) is never the first; a sentence names those that are sooner.
    """
    rows = row_times(group.competing, target)
    if not rows:
        controls = f"Only controls have finished, so no method is the first to {target.of(group.metric)}."
        return Answer(outcome="nobody", lead=(controls,), basis=_basis(group, ()))
    first, *others = rows
    if math.isinf(first.seconds.median):
        found = (*_nobody(group, target, rows), *_sooner_controls(group, target, None))
        return Answer(outcome="nobody", lead=found, basis=_basis(group, ()))
    # More nodes are rivals of one machine, but not of fewer nodes.
    alone = first.contender.nodes == 1
    rivals = [row for row in others if alone or row.contender.name != first.contender.name]
    close = [row for row in rivals if first.overlaps(row)]
    shown = [first, *(close or [row for row in rivals[:1] if math.isfinite(row.seconds.median)])]
    lead = _close(group, target, shown) if close else _first(group, target, shown, rows)
    outcome: Outcome = "close" if close else "first"
    return Answer(
        outcome=outcome,
        lead=(
            *lead,
            *_one_machine(rows, first, close=bool(close)),
            *_sooner_controls(group, target, first),
        ),
        details=(
            *_over_baseline(group, target, first, baseline, close=bool(close)),
            *_costs(group, target, shown),
            *(["One seed each, so no spread is known."] if max(row.seconds.seeds for row in shown) == 1 else []),
        ),
        basis=_basis(group, shown),
        doubts=tuple(dict.fromkeys(_doubts(group, target, shown))),
    )


def _where(group: RunGroup) -> str:
    if group.profile is not None:
        return f"replayed on {group.profile.name}"
    clock = " by wall clock" if group.clock == "wall_s" else ""
    lab = f" in a lab ({group.host.lab})" if group.host.lab else ""
    return f"measured{clock}{lab} on {group.host.name}"


def _one_machine(rows: Sequence[RowTime], first: RowTime, *, close: bool) -> Iterable[str]:
    """Whether one machine is enough, if there are rows on one node and on more, and `_first` does not say it."""
    own = [row for row in rows if row.contender.nodes == 1]
    if len(own) in (0, len(rows)):
        return
    if first.contender.nodes == 1:
        if close:
            yield "One machine may be enough: no row on more nodes is clearly faster."
        return
    one = own[0]
    if first.overlaps(one):
        yield f"One machine may be enough, it is too close to call: {one.name} takes {one.time}."
    elif math.isinf(one.seconds.median):
        yield f"One machine does not reach it: {one.name}, {one.seeds}."
    else:
        yield f"One machine, {one.name}, takes {one.time}{_times_as_long(one, first)}."


def _times_as_long(slower: RowTime, faster: RowTime) -> str:
    times = slower.over(faster)
    return "" if times is None else f", {number(times)} times as long"


def _nobody(group: RunGroup, target: Target, rows: Sequence[RowTime]) -> tuple[str, ...]:
    finals = [(median(row.contender.finals().values()), row) for row in rows]
    best = group.metric.best(value for value, _ in finals)
    found = next(row for value, row in finals if value == best)
    return (
        f"{'None' if group.of_rows else 'Nobody'}{group.of_rows} reached {target.of(group.metric)} within "
        f"{group.budget}, {_where(group)}{_apart_from(rows)}.",
        f"The best final {group.metric.name} is that of {found.name}, "
        f"{with_interval(seed_median(found.contender.finals().values()), metric_value)}.",
    )


def _few(rows: Iterable[RowTime]) -> list[str]:
    """`1 of 3 seeds of ist on 2 nodes`, of each row that reached a target with half of its seeds at most."""
    few = [row for row in rows if row.seconds.reached and math.isinf(row.seconds.median)]
    return [f"{row.seeds} of {row.name}" for row in few]


def _apart_from(rows: Iterable[RowTime]) -> str:
    few = _few(rows)
    return f", apart from {joined(few)}" if few else ""


def _first(group: RunGroup, target: Target, shown: Sequence[RowTime], rows: Sequence[RowTime]) -> Iterable[str]:
    first, *others = shown
    enough = first.contender.nodes == 1 and any(row.contender.nodes > 1 for row in rows)
    lead = (
        f"{'One machine is enough: ' if enough else ''}{first.name} is the first{group.of_rows} to reach "
        f"{target.of(group.metric)}, in {first.time}, {_where(group)}"
        + (f"; {first.seeds} reached it" if first.seconds.seeds > 1 else "")
    )
    if others:
        yield f"{lead}. Next, {others[0].name} takes {others[0].time}{_times_as_long(others[0], first)}."
    else:
        names = {row.contender.name for row in rows}
        tried = len(names) > 1 or any(run.diverged for run in group.unfinished)
        apart = _apart_from(row for row in rows if row.contender.name != first.contender.name)
        yield f"{lead}. No other method {'did' if tried else 'ran'}{apart}."


def _over_baseline(group: RunGroup, target: Target, first: RowTime, baseline: str, *, close: bool) -> Iterable[str]:
    found = pair(group, baseline, first.contender, [target])
    if close or found is None:
        return
    on = f"{found.against.in_words} on as many nodes"
    if found.found.ratio is not None:
        ratio = found.found.ratio
        yield f"Paired by seed, it is {number(ratio.median)} times{interval(ratio, number)} as fast as {on}."
    elif found.found.baseline_missed:
        yield f"In most seeds, {on} does not reach it."


def _close(group: RunGroup, target: Target, shown: Sequence[RowTime]) -> Iterable[str]:
    first, *others = shown
    yield (
        f"Too close to call{group.of_rows}: to {target.of(group.metric)}, {first.name} takes {first.time}, "
        f"{joined(f'{row.name} {row.time}' for row in others)}, {_where(group)}."
    )
    by_seeds = all(row.seconds.low <= first.seconds.high for row in others)
    yield (
        "Their ranges over seeds overlap."
        if by_seeds
        else "The difference is smaller than the largest error of such replays in a lab."
    )
    if few := _few(others):
        yield f"Only {joined(few)} reached it."


def _sooner_controls(group: RunGroup, target: Target, first: RowTime | None) -> Iterable[str]:
    """A sentence for each control that is sooner than `first`, or too close to it, the soonest first."""
    for row in row_times(filter(group.is_control, group.contenders), target):
        if first is None and math.isinf(row.seconds.median):
            continue
        wide = bool(row.contender.narrowed)
        sooner = first is None or row.seconds.median < first.seconds.median
        if first is not None and (row.overlaps(first) if sooner else first.overlaps(row)):
            means = "the wide network may not be worth its cost" if wide else "other nodes may not help"
            yield f"A control is too close to call: {row.name} takes {row.time}, so to this target {means}."
        elif sooner:
            means = "the wide network is not worth its cost" if wide else "other nodes do not help"
            yield f"A control is sooner: {row.name} takes {row.time}, so to this target {means}."


def _costs(group: RunGroup, target: Target, rows: Sequence[RowTime]) -> Iterable[str]:
    """A sentence with the traffic and the dollars of each row that reached the target, up to it."""
    costs = []
    for row in rows:
        if math.isinf(row.seconds.median):
            continue
        parts = [f"{number(median(row.contender.megabytes(target.level).values()))} MB sent per node"]
        spent = group.dollars(row.contender, row.seconds.median)
        parts += [] if spent is None else [f"${number(spent)}"]
        costs.append(f"{row.name} {' and '.join(parts)}")
    yield f"Cost to the target: {'; '.join(costs)}."


def _basis(group: RunGroup, shown: Sequence[RowTime]) -> tuple[str, ...]:
    own = "" if group.source.kind != "synthetic" else " These figures say nothing about the real dataset."
    trials = group.unequal_trials
    tuned = [f"Tuned unequally, by trials: {trials}."] if trials else []
    among = f"Among {group.among}."
    return (among, *_clock(group, shown), *tuned, f"Trained on {group.source.seen}.{own}")


def _clock(group: RunGroup, shown: Sequence[RowTime]) -> Iterable[str]:
    if group.profile is None:
        stops = ", evaluations and saving included" if group.clock == "wall_s" else ""
        yield f"Measured on {group.machine}{stops}."
        return
    yield f"Replayed on {group.machine}, not measured there."
    known = [f"{row.contender.known_percent} % for {row.name}" for row in shown if row.contender.known_range]
    if known:
        yield f"The seconds are known to {joined(known)}."
    checked, unchecked = checked_methods(time for row in shown for time in row.contender.times)
    off = [f"{check.method} by up to {abs(check.largest):.1%}" for check in checked]
    if off:
        yield f"{'Beside that, in' if known else 'In'} a lab replays were off: {'; '.join(off)}."
    if unchecked:
        yield f"No lab has checked replays of {joined(unchecked)}."


def _doubts(group: RunGroup, target: Target, shown: Sequence[RowTime]) -> Iterable[str]:
    """Reasons to doubt that the first of the rows `shown` is first, in a few words each; none for a sure answer."""
    seeds = min((row.seconds.seeds for row in shown), default=_FEWEST_SEEDS)
    if seeds < _FEWEST_SEEDS:
        yield "one seed" if seeds == 1 else "two seeds"
    if not group.tuning.startswith("tuned by"):
        yield group.tuning
    methods = {row.method for row in group.competing}
    if missing := [name for name in _EXPECTED if name not in methods]:
        yield f"without {joined(missing)}"
    if any(row.contender.from_start(target.level) for row in shown):
        yield "reached before the first evaluation"
    runs = [run for row in shown for run in row.contender.runs]
    if group.profile is not None:
        yield from _worst(run.doubt for run in runs if run.doubt)
        if len(shown) > 1 and _may_swap(*shown[:2]):
            yield "the ranges of what is known of computing overlap"
        return
    cores, most = group.host.cores, max((row.contender.nodes for row in shown), default=0)
    if group.device == "cpu" and cores and not group.host.lab:
        if most > cores:
            yield f"{most} nodes took turns on {cores} cores"
        else:
            yield from filter(None, [max(map(_others, runs), default="")])
    if any(run.stalls for run in runs):
        yield "something outside training held up a run"


def _worst(doubts: Iterable[str]) -> Iterable[str]:
    """Of doubts that differ in their figures alone, the one with the largest first figure."""
    worst: dict[str, tuple[float, str]] = {}
    for doubt in doubts:
        figures = [float(figure) for figure in _FIGURE.findall(doubt)]
        kind = _FIGURE.sub("", doubt)
        worst[kind] = max(worst.get(kind, (0.0, doubt)), (figures[0] if figures else 0.0, doubt))
    return (doubt for _, doubt in worst.values())


def _may_swap(first: RowTime, second: RowTime) -> bool:
    ranges = [row.contender.known_range for row in (first, second)]
    if ranges[0] is None or ranges[1] is None:
        return False
    return second.seconds.median * ranges[1][0] <= first.seconds.median * ranges[0][1]


def _others(run: Run) -> str:
    """A doubt of the train seconds of `run`, whose nodes had a core each; empty without one."""
    trace = run.directory.trace
    return _others_in(trace, trace.stat().st_mtime_ns) if trace.exists() else ""


@functools.lru_cache(maxsize=1000)
def _others_in(path: Path, _written_ns: int) -> str:
    from istbench.cluster.trace import without_core
    from istbench.cluster.trace_file import load_trace

    try:
        trace = load_trace(path)
    except UserError:
        return ""  # the replay says what is wrong with it
    if trace.meta.doubt:
        return trace.meta.doubt
    share = without_core(trace)
    # A node's own messages and work beside training may take its core, too.
    if share < _WITHOUT_CORE or trace.meta.transport or trace.has_work:
        return ""
    return f"in {share:.0%} of the compute seconds a node had no core to itself"
