"""Conditions under which a build fails, such as `time_to(0.77) > 1.2 * baseline`, on rows paired by seed."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from istbench.base.errors import UserError, shown
from istbench.report.groups import Contender, RunGroup
from istbench.report.tables.numbers import number
from istbench.results.metrics import check_share, level_text
from istbench.results.stats import SeedMedian, finite, seed_median

_NUMBER = r"\d{1,15}(?:\.\d{0,15})?(?:e[+-]?\d{1,3})?"
_CONDITION = re.compile(
    rf"\s*(time_to|cluster_time_to|megabytes_to|final)\s*(?:\(\s*(-?{_NUMBER})\s*\))?\s*([<>])\s*"
    rf"(?:({_NUMBER})\s*\*\s*)?(?:(baseline)|(-?{_NUMBER}))\s*"
)
Verdict = Literal["held", "close", "no"]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition as typed.

    Attributes:
        measure: of a row: seconds to a target as measured, or as replayed, megabytes sent by the busiest node up to
            it, or the final value of the metric. level: the target; None for `final`.
        above: whether it holds above the bound. bound: a factor of the baseline, or a value.
    """

    text: str
    measure: str
    level: float | None
    above: bool
    bound: float
    of_baseline: bool

    @property
    def clock(self) -> str:
        """The clock of the groups that it is about."""
        return "cluster_s" if self.measure == "cluster_time_to" else "train_s"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A condition on one row.

    Attributes:
        verdict: it held in all of the interval, or only at its median (`close`), or not. value: over the baseline,
            if the condition has one, as in `_ratio`.
    """

    condition: Condition
    row: str
    verdict: Verdict
    value: SeedMedian

    def record(self) -> dict[str, Any]:
        """For programs; null for a value that is not finite."""
        value = {name: finite(getattr(self.value, name)) for name in ("median", "low", "high")}
        return {"condition": self.condition.text, "row": self.row, "verdict": self.verdict, **value}

    @property
    def sentence(self) -> str:
        """The row, its value and the bound in a line."""
        condition = self.condition
        median, low, high = map(self._text, (self.value.median, self.value.low, self.value.high))
        times = " times the baseline" if condition.of_baseline else ""
        word = "more" if condition.above else "less"
        sure = "" if self.verdict == "held" else ", but too close to call"
        level = "" if condition.level is None else f"({level_text(condition.level)})"
        what, bound = f"{condition.measure}{level}", level_text(condition.bound)
        return f"{self.row}: {what} is {median} [{low}–{high}]{times}, {word} than {bound}{sure}"

    def _text(self, value: float) -> str:
        if math.isfinite(value):
            return number(value)
        if self.condition.level is not None:
            return "never"
        return f"{value:g}" if self.condition.of_baseline else "diverged"


def parse_condition(text: str, flag: str) -> Condition:
    """The condition `text`, such as `time_to(0.77) > 1.2 * baseline` or `final < 0.7`.

    Raises:
        UserError: for any other text; the message begins with `flag`.
    """
    found = _CONDITION.fullmatch(text) if len(text) < 200 else None
    if found is None or (found[1] == "final") != (found[2] is None) or (found[4] and not found[5]):
        raise UserError(
            f"{flag} {shown(text)} is no condition such as 'time_to(0.77) > 1.2 * baseline', "
            "'cluster_time_to(0.77) > 60', 'megabytes_to(0.77) > 500' or 'final < 0.95 * baseline'"
        )
    bound = found[4] or "1" if found[5] else found[6]
    return Condition(
        text=text,
        measure=found[1],
        level=None if found[2] is None else float(found[2]),
        above=found[3] == ">",
        bound=float(bound),
        of_baseline=bool(found[5]),
    )


def check_all(
    conditions: Iterable[Condition], groups: Sequence[RunGroup], baseline: Sequence[RunGroup] = ()
) -> tuple[list[Checked], list[str]]:
    """Each of `conditions` on each row of `groups`, and a line on each row that has no counterpart in `baseline`.

    Raises:
        UserError: if a condition is about no row at all.
    """
    checked, lacking = list[Checked](), dict[str, None]()
    for condition in conditions:
        found, lines = _check(condition, groups, baseline)
        if not found:
            reason = lines[0] if lines else "no finished run has such seconds"
            raise UserError(f"--fail-if {shown(condition.text)} says nothing of these results: {reason}")
        checked += found
        lacking |= dict.fromkeys(lines)
    return checked, list(lacking)


def _check(
    condition: Condition, groups: Iterable[RunGroup], baseline: Iterable[RunGroup]
) -> tuple[list[Checked], list[str]]:
    before, rows = _rows(condition, baseline), _rows(condition, groups)
    found, lacking = list[Checked](), list[str]()
    for group, row in rows:
        _check_shares(condition, row)
        name, values = _name(group, row, rows), _values(condition, row)
        if condition.of_baseline:
            there = _counterpart(group, row, before)
            if there is None:
                lacking.append(f"{name}: the baseline has no such row of the same data, batch size and budget")
                continue
            values = _ratios(values, _values(condition, there[1]))
            if not values:
                lacking.append(f"{name}: no seed has a value both here and in the baseline")
                continue
            if condition.measure == "time_to" and _machine(there[0]) != _machine(group):
                lacking.append(
                    f"{name}: the baseline is of another machine or lab, {there[0].machine}; cluster_time_to "
                    "compares replayed seconds"
                )
        found.append(_checked(condition, name, seed_median(values.values())))
    return found, lacking


def _check_shares(condition: Condition, row: Contender) -> None:
    """Refuse a level or a final value in percent."""
    header = row.header
    level = condition.bound if condition.measure == "final" and not condition.of_baseline else condition.level
    if level is not None:
        check_share(level, header.metric, header.targets, header.workload, "--fail-if ")


def _checked(condition: Condition, row: str, value: SeedMedian) -> Checked:
    def beyond(one: float) -> bool:
        return one > condition.bound if condition.above else one < condition.bound

    ends = (value.low, value.high)
    verdict: Verdict = "no"
    if beyond(value.median):
        verdict = "held" if all(map(beyond, ends)) else "close"
    return Checked(condition=condition, row=row, verdict=verdict, value=value)


_Row = tuple[RunGroup, Contender]


def _rows(condition: Condition, groups: Iterable[RunGroup]) -> list[_Row]:
    return [(group, row) for group in groups if group.clock == condition.clock for row in group.contenders]


def _counterpart(group: RunGroup, row: Contender, before: Sequence[_Row]) -> _Row | None:
    """The row of the baseline to compare with: of this machine, of the same settings, then the newest one.

    Its label may differ: it says what tells rows of one directory apart, such as the code of a task file.
    """
    alike = [own for own in before if _key(*own) == _key(group, row)]
    alike.sort(key=lambda own: max(run.header.finished_at or "" for run in own[1].runs), reverse=True)
    return min(
        alike, key=lambda own: (_machine(own[0]) != _machine(group), own[1].settings != row.settings), default=None
    )


def _key(group: RunGroup, row: Contender) -> tuple[object, ...]:
    """Rows of equal keys are compared."""
    label, narrowed = row.header.method_label, sorted(row.narrowed.items())
    return group.study, group.profile and group.profile.name, label, narrowed, row.nodes


def _machine(group: RunGroup) -> tuple[object, ...]:
    return group.host.name, group.host.cores, group.host.lab


def _name(group: RunGroup, row: Contender, rows: Sequence[_Row]) -> str:
    """The name of `row`, with what tells its table from others that have a row of that name."""
    alike = [own for own, other in rows if other.placed == row.placed]
    table = f"{group.workload_label}, batch size {group.batch_size}, {group.budget}, {group.machine}"
    return row.placed if len(alike) == 1 else f"{row.placed} ({table})"


def _values(condition: Condition, row: Contender) -> Mapping[int, float]:
    """The measure by seed."""
    if condition.level is None:
        return row.finals()
    if condition.measure == "megabytes_to":
        return row.megabytes(condition.level)
    return row.seconds(condition.level)


def _ratios(now: Mapping[int, float], before: Mapping[int, float]) -> dict[int, float]:
    """The value over the baseline by seed; without seeds that missed in both."""
    return {
        seed: _ratio(now[seed], before[seed])
        for seed in sorted(now.keys() & before.keys())
        if math.isfinite(now[seed]) or math.isfinite(before[seed])
    }


def _ratio(now: float, before: float) -> float:
    """`now` over `before`, rising with `now` for any `before`: 1 plus the change over the size of `before`.

    A change from 0 is infinite. A run that diverged before, and no longer does, is infinitely far from it.
    """
    if math.isinf(before):
        return 0.0 if before > 0 else math.inf
    if before == 0:
        return math.copysign(math.inf, now) if now else 1.0
    return now / before if before > 0 else 2 - now / before
