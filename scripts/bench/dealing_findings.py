"""The sentences of the study that `dealing.py` writes: which form of `ist` ends close, is lighter, and is first."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dealing_rows import BASELINES, SWEEP, Place, Row, accuracy_text, timed

from istbench.cluster.profile import bandwidth_text
from istbench.node.registry import load_workload
from istbench.report.answer import ranges_overlap
from istbench.report.phrases import count_nodes, joined
from istbench.results.load import Run
from istbench.studies.reproduce.figures import Figure, has, read_rows
from istbench.studies.reproduce.paper import PUBLISHED

WANTED = {2: 1.0, 4: 3.0}
"""By nodes: the points of accuracy behind `local_sgd` that are near enough."""
_MOST_CLOSE = 4


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The first row at a place.

    Attributes:
        close: it, and the rows whose ranges overlap with its own; the fastest comes first.
        rival: the best row of the other kind (`ist` or not); None if none reaches the level.
        ratio: the seconds of the rival over those of the first.
    """

    close: tuple[Row, ...]
    rival: Row | None
    ratio: float

    @property
    def first(self) -> Row:
        """The row with the smallest median."""
        return self.close[0]

    @property
    def decided(self) -> bool:
        """Whether all rows that may be the first are of one kind."""
        return all(row.cell.of_ist == self.first.cell.of_ist for row in self.close)

    @property
    def names(self) -> tuple[str, ...]:
        """Labels of the close rows, in an order that no bandwidth changes where nothing is decided."""
        labels = [row.cell.label for row in self.close]
        return tuple(labels if self.decided else sorted(labels))

    @property
    def key(self) -> tuple[tuple[str, ...], str | None]:
        """Equal at bandwidths that share a sentence: the close rows, and the rival where something is decided."""
        return self.names, self.rival.cell.label if self.decided and self.rival is not None else None


def findings(rows: Sequence[Row], levels: Sequence[float]) -> Iterator[str]:
    """Lines on what the rows of each number of nodes show."""
    for nodes, found in groupby(rows, key=lambda row: row.cell.nodes):
        own = list(found)
        where = count_nodes(nodes)
        baseline, lacking = baseline_in(own, "local_sgd"), lacking_in(own)
        if lacking:
            yield f"{where}: {lacking}, so nothing is named first."
        elif baseline is not None:
            yield f"{where}, near enough, lighter and first: {verdict(own, baseline, levels)}."
        if baseline is not None and any(row.cell.of_ist for row in own):
            yield from gaps(own, baseline)
        if not lacking:
            yield from (f"{where}, to {level:g}: {firsts(own, level)}." for level in levels)


def baseline_in(rows: Sequence[Row], method: str) -> Row | None:
    """The row of a baseline, at the width of the study; None if it has not finished."""
    return next((row for row in rows if row.cell.method == method and row.cell.widen == 1), None)


def lacking_in(rows: Sequence[Row]) -> str:
    """The methods without a row or without seconds that compare, in words; empty if there are none."""
    there = {method: [row] for method in BASELINES if (row := baseline_in(rows, method)) is not None}
    there["ist"] = [row for row in rows if row.cell.of_ist]
    said = []
    for method in (*BASELINES, "ist"):
        own = there.get(method, [])
        if not own:
            said.append(f"`{method}` has not finished")
        elif not any(all(row.seconds.values()) for row in timed(own)):
            said.append(f"`{method}` has no replayed seconds that compare")
    return joined(said) if said else ""


def wanted_on(nodes: int) -> float:
    """The points behind `local_sgd` that are near enough."""
    return WANTED.get(nodes, min(WANTED.values()))


def verdict(rows: Sequence[Row], baseline: Row, levels: Sequence[float]) -> str:
    """The forms of `ist` that are near enough, lighter, and first at some bandwidth; or the reason why none is."""
    forms = sorted((row for row in rows if row.cell.of_ist and row.cell.widen == 1), key=lambda row: -row.final)
    if not forms:
        return "no form, because none of the width of `local_sgd` has finished"
    near = [row for row in forms if behind(row, baseline) <= wanted_on(baseline.cell.nodes)]
    if not near:
        return f"no form. The nearest is {beside(forms[0], baseline)}"
    light = [row for row in near if is_lighter(row, baseline)]
    if not light:
        return f"no form. Near enough, but not lighter: {several(near, baseline)}"
    others = [row for row in rows if not row.cell.of_ist]
    won = [f"`{row.cell.label}` ({row.seeds}; {words})" for row in light if (words := sooner(row, others, levels))]
    if won:
        return "; ".join(won)
    names = joined(f"`{row.cell.label}`" for row in light)
    if all(row.cell.warmup_rounds for row in light):
        return f"unknown. Near enough and lighter is {names}, but its replayed seconds are too small"
    return (
        f"no form. Near enough and lighter is {names}, but to "
        f"{' or '.join(f'{level:g}' for level in levels)} it is clearly sooner than "
        f"{joined(f'`{row.cell.label}`' for row in others)} at no bandwidth"
    )


def sooner(row: Row, others: Sequence[Row], levels: Sequence[float]) -> str:
    """The bandwidths at which `row` is clearly sooner than all `others`, by level; empty if there are none."""
    said = []
    for level in levels:
        leads = [(bits, lead_at(timed([row, *others]), (level, bits))) for bits in SWEEP]
        spans = [
            span_words([bits for bits, _ in found])
            for clear, found in groupby(leads, key=lambda pair: pair[1] is not None and pair[1].close == (row,))
            if clear
        ]
        if spans:
            said.append(f"to {level:g} {' and '.join(spans)}")
    return ", ".join(said)


def gaps(rows: Sequence[Row], baseline: Row) -> Iterator[str]:
    """How far the forms of `ist` end behind `baseline`, on as many nodes."""
    where, wanted = count_nodes(baseline.cell.nodes), wanted_on(baseline.cell.nodes)
    ranked = sorted((row for row in rows if row.cell.of_ist), key=lambda row: -row.final)
    lighter = [row for row in ranked if row.cell.widen == 1 and is_lighter(row, baseline)]
    near = [row for row in lighter if behind(row, baseline) <= wanted]
    less = "with fewer bytes and less arithmetic than `local_sgd`"
    yield f"{where}, at most {points_text(wanted)} behind and {less}: {several(near, baseline)}."
    yield f"{where}, the best two {less}: {several(lighter[:2], baseline)}."
    wide = [row for row in ranked if row.cell.widen > 1]
    if wide:
        yield f"{where}, wider models: {several(wide, baseline)}."


def behind(row: Row, baseline: Row) -> float:
    """Points of accuracy that `row` ends behind `baseline`, as its text shows them: to a hundredth."""
    points = 100 * (baseline.final - row.final)
    return round(points, 2) if math.isfinite(points) else math.inf


def points_text(points: float) -> str:
    """`1 point`, `3 points`."""
    return f"{points:g} point{'' if points == 1 else 's'}"


def is_lighter(row: Row, baseline: Row) -> bool:
    """Whether a node of `row` sends less and computes less than one of `baseline`; not if that is unknown."""
    if row.operations is None or baseline.operations is None:
        return False
    return row.megabytes < baseline.megabytes and row.operations < baseline.operations


def several(rows: Sequence[Row], baseline: Row) -> str:
    """Each of `rows`, in accuracy, bytes and arithmetic of `baseline`."""
    return "; ".join(beside(row, baseline) for row in rows) or "none"


def beside(row: Row, baseline: Row) -> str:
    """`row` in accuracy, bytes and arithmetic of `baseline`."""
    points = f"{0.0 - behind(row, baseline):+.2f} points"
    sent = f"{row.megabytes / baseline.megabytes:.2f} of the bytes"
    computed = "unknown arithmetic"
    if row.operations is not None and baseline.operations is not None:
        computed = f"{row.operations / baseline.operations:.2f} of the arithmetic"
    return f"`{row.cell.label}` {accuracy_text(row.final)} ({row.seeds}, {points}, {sent}, {computed})"


def firsts(rows: Sequence[Row], level: float) -> str:
    """The first row to `level` at each bandwidth of `SWEEP`, and its lead over the best row of the other kind."""
    found = [(bits, lead_at(timed(rows), (level, bits))) for bits in SWEEP]
    leads = [(bits, lead) for bits, lead in found if lead is not None]
    if not leads:
        return "no run reaches it"
    parts = [lead_words(list(span)) for _, span in groupby(leads, key=lambda pair: pair[1].key)]
    won = any(lead.decided and lead.first.cell.of_ist for _, lead in leads)
    return "; ".join([*parts, *([] if won else ["`ist` is clearly first at no bandwidth"])])


def lead_words(span: Sequence[tuple[float, Lead]]) -> str:
    """The first row at neighbouring bandwidths that have the same close rows and the same rival."""
    where, lead = span_words([bits for bits, _ in span]), span[0][1]
    names = [f"`{name}`" for name in lead.names]
    more = [f"{len(names) - _MOST_CLOSE} more"] if len(names) > _MOST_CLOSE else []
    if not lead.decided:
        return f"too close to call {where}: {joined([*names[:_MOST_CLOSE], *more])}"
    enough = max(2, len(lead.rival.finals) if lead.rival is not None else 0)
    first = names[0] if len(lead.first.finals) >= enough else f"{names[0]} ({lead.first.seeds})"
    words = f"{first} is first {where}, {over_rival([lead for _, lead in span])}"
    if len(names) == 1:
        return words
    return f"{words} (too close to call between it and {joined([*names[1:_MOST_CLOSE], *more])})"


def over_rival(leads: Sequence[Lead]) -> str:
    """The lead over the best row of the other kind, in words."""
    lead = leads[0]
    if lead.rival is None:
        return "and no baseline reaches it" if lead.first.cell.of_ist else "and no form of `ist` reaches it"
    low, high = (f"{end(lead.ratio for lead in leads):.2f}" for end in (min, max))
    return f"{low if low == high else f'{low} to {high}'} times as fast as `{lead.rival.cell.label}`"


def span_words(bandwidths: Sequence[float]) -> str:
    """`at 1 Gbit/s`, `from 10 Mbit/s to 1 Gbit/s`."""
    low, high = bandwidth_text(bandwidths[0]), bandwidth_text(bandwidths[-1])
    return f"at {low}" if low == high else f"from {low} to {high}"


def lead_at(rows: Sequence[Row], place: Place) -> Lead | None:
    """The first of `rows` at `place`; None if none reaches the level with more than half of its seeds."""
    known = [(time, row) for row in rows if (time := row.time(place)) is not None and math.isfinite(time.median)]
    if not known:
        return None
    ((fastest, first), *others) = sorted(known, key=lambda pair: pair[0].median)
    close = [row for time, row in others if ranges_overlap(fastest, first.error, time, row.error)]
    rivals = [(time, row) for time, row in others if row.cell.of_ist != first.cell.of_ist]
    rival = rivals[0][1] if rivals else None
    ratio = rivals[0][0].median / fastest.median if rivals and fastest.median else math.inf
    return Lead(close=(first, *close), rival=rival, ratio=ratio)


def beside_paper(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[str]:
    """A line with final values of a paper beside ours, if ours trained for the workload's own epochs at least."""
    head = runs[0].header
    options, source = head.config.workload_options, head.data_source
    figures = [
        figure
        for figure in read_rows(PUBLISHED / "figures.csv", Figure)
        if figure.value is not None
        and (figure.workload, figure.metric) == (head.workload, head.metric)
        and has(options, figure.options)
    ]
    if not figures or source.kind == "synthetic":
        return
    workload = load_workload(head.workload)
    assert head.result is not None
    if round(head.result.samples / source.train) < workload.epochs:
        return
    usual = {field.name: field.default for field in dataclasses.fields(workload.Options)}
    changed = [
        f"{name} {options[name]}, not {usual[name]}"
        for name in usual
        if options.get(name, usual[name]) != usual[name]
    ]
    published = ", ".join(f"`{figure.method}` {figure.value:.4f}" for figure in figures)
    ours = ", ".join(f"`{row.cell.label}` on {count_nodes(row.cell.nodes)} {row.final:.4f}" for row in rows)
    yield (
        f"Beside the paper ({joined(dict.fromkeys(figure.paper for figure in figures))}), final {head.metric}: "
        f"published {published}; here {ours}. Differences: here {'; '.join([*changed, head.budget, source.seen])}; "
        "the paper deals all units and names neither nodes nor epochs."
    )
