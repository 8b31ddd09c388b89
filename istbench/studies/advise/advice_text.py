"""The advice in words for a terminal, and as data for the page of a report."""

import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from istbench.cluster.profile import bandwidth_text
from istbench.report.page import Section
from istbench.report.phrases import count_nodes, joined
from istbench.report.tables.numbers import NumberForm, number, percent, rounded
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, column, table_of
from istbench.results.metrics import level_text
from istbench.studies.advise.advice_file import regret
from istbench.studies.advise.answer import Advice, RankedChoice
from istbench.studies.advise.candidate import (
    NO_EVALUATION,
    NO_TIME,
    NO_TRACE,
    ONE_NODE,
    SharedOptions,
    is_scheduled,
)
from istbench.studies.advise.flips import Flip
from istbench.studies.advise.odds import CLEAR, Decide
from istbench.studies.advise.steps_to_target import TOO_FEW

_RANGE = "Ranges in brackets hold 8 of 10 draws."
_SHOWN = 0.01
_NAMED = 3
_FEWEST_SEEDS = 3


def advice_text(advice: Advice) -> str:
    """The advice for a terminal: the answer, the command to run, then the reasons."""
    section = advice_section(advice)
    parts = [
        [f"{heading}:", *(f"  {line}" for line in lines)] if heading else list(lines)
        for heading, lines in section.paragraphs
    ]
    if section.command:
        parts.insert(1, [section.command])
    return "\n\n".join("\n".join(lines) for lines in parts)


def advice_section(advice: Advice) -> Section:
    """The advice as data for a page. Options that all candidates share are said once."""
    shared = _shared(advice)
    said = [
        ("", (*_expected(advice), *_compared(advice))),
        ("", tuple(_odds(advice))),
        ("Why", tuple(_why(advice))),
        ("Where the answer flips", tuple(_flips(advice)) if advice.best else ()),
        ("Not tested", advice.not_tested),
    ]
    paragraphs = [(heading, tuple(map(shared.without, lines))) for heading, lines in said if lines]
    if shared.words:
        paragraphs.insert(1, ("", (f"All train with {shared.words}.",)))
    return Section(
        title=_title(advice),
        outcome=_outcome(advice),
        target=advice.target,
        cluster=advice.cluster,
        command=shlex.join(advice.best.command) if advice.best else "",
        paragraphs=tuple(paragraphs),
        table=candidates_table(advice),
    )


def truth_lines(advice: Advice, truth: Mapping[str, float | None]) -> list[str]:
    """The measured seconds of each candidate in `truth`, and the regret of the advice."""
    shared = _shared(advice)
    lines = [
        f"{shared.without(label)}: {'did not reach the target' if seconds is None else f'{number(seconds)} s'}"
        for label, seconds in truth.items()
    ]
    found = regret(advice, dict(truth))
    if found is None:
        return [*lines, "No regret: nobody reached the target."]
    if math.isinf(found):
        return [*lines, "The recommended method did not reach the target, and another did."]
    choices = (*filter(None, [advice.best]), *advice.others)
    scheduled = {choice.label for choice in choices if is_scheduled(choice.options)}
    among = "" if scheduled & truth.keys() else ", all at a constant learning rate"
    return [*lines, f"Regret: {found:.1%} of the fastest measured time, among {len(truth)} candidates{among}."]


def candidates_table(advice: Advice) -> Table:
    """A row for each candidate, the likeliest first."""
    shared = _shared(advice)
    named = [
        msgspec.structs.replace(choice, label=shared.without(choice.label), why_not=shared.without(choice.why_not))
        for choice in advice.choices
    ]
    throughout = f", all with {shared.words}" if shared.words else ""
    return table_of(
        _COLUMNS,
        named,
        title=f"Candidates{throughout}: {_question(advice)}",
        empty="No candidate.",
        footer=(f"Seconds are replayed on {advice.cluster}. {_RANGE}",),
    )


def _shared(advice: Advice) -> SharedOptions:
    return SharedOptions.of(choice.label for choice in advice.choices)


def _title(advice: Advice) -> str:
    where = f"{count_nodes(advice.nodes)} of {advice.cluster}"
    return f"Which method trains {advice.workload} to {_target(advice)} first on {where}?"


def _outcome(advice: Advice) -> Literal["first", "unsure", "close", "nobody"]:
    """How sure the page looks: an extrapolated time and fewer than three seeds make a clear answer unsure."""
    if advice.best is None:
        return "nobody"
    if advice.verdict != "clear":
        return "close"
    return "unsure" if advice.best.extrapolated or advice.best.seeds < _FEWEST_SEEDS else "first"


def _question(advice: Advice) -> str:
    return f"{advice.workload} to {_target(advice)} on {count_nodes(advice.nodes)} of {advice.cluster}"


def _target(advice: Advice) -> str:
    return f"{advice.own_metric.title} {level_text(advice.target)}"


def _named_target(advice: Advice) -> str:
    """`accuracy 0.72 (which one node reached in 41 s; --target asks for another)`."""
    asks = f" ({advice.target_from}; --target asks for another)" if advice.target_from else ""
    return f"{_target(advice)}{asks}"


def _expected(advice: Advice) -> Iterable[str]:
    best = advice.best
    if best is None and advice.nobody is None:
        yield f"No advice on {_question(advice)}: {_no_advice(advice)}."
        return
    if best is None:
        assert advice.nobody is not None
        yield (
            f"No candidate is expected to reach {_named_target(advice)} on {count_nodes(advice.nodes)} of "
            f"{advice.cluster}: each misses it in more than half of the draws. The odds that all miss it are "
            f"{_two(advice.nobody)}."
        )
        yield "An easier --target, or more --minutes for longer probes, may give an answer."
        return
    if best.seconds is None:
        yield f"{best.label} reaches {_target(advice)} in less than half of the draws, so it has no expected time."
        return
    enough = "is" if advice.verdict == "clear" else "may be"
    who = f"One machine {enough} enough: one node" if best.label == ONE_NODE else best.label
    where = f"{count_nodes(best.nodes)} of {advice.cluster}"
    yield f"{who} takes {_time(best)} to {_named_target(advice)} on {where}. {_RANGE}"
    if advice.early:
        yield advice.early
    if best.diverged:
        yield f"{best.diverged} of its {best.seeds} seeds diverged."
    if best.extrapolated:
        yield f"The target lies beyond its probe of {best.steps_probed:,} local steps, so its time is extrapolated."


def _no_advice(advice: Advice) -> str:
    """The reason why no candidate has odds, and the way out."""
    if any(choice.label == ONE_NODE and not choice.why_not for choice in advice.others):
        return "no probe finished in the time but that of one node. Give more --minutes"
    reasons = list(dict.fromkeys(choice.why_not for choice in advice.others))
    if {TOO_FEW, NO_TRACE} & {*reasons}:
        return "no probe tells enough in the time. Give more --minutes"
    if not reasons or {NO_TIME, NO_EVALUATION} & {*reasons}:
        return "no probe finished in the time. Give more --minutes"
    told = "; ".join(f"{choice.label}: {choice.why_not}" for choice in advice.others[:_NAMED])
    return f"no method can train there. {told}" + ("; ..." if len(advice.others) > _NAMED else "")


def _compared(advice: Advice) -> Iterable[str]:
    best = advice.best
    for other in advice.others:
        if best is None or not other.baseline:
            continue
        if other.why_not:
            yield f"{other.label}: {other.why_not}."
        elif other.seconds is None:
            yield f"{other.label} is not expected to reach it."
        else:
            times = f", {number(other.seconds / best.seconds)} times as long" if best.seconds else ""
            yield f"{other.label} takes {_time(other)}{times}."


def _time(choice: RankedChoice) -> str:
    """`12.3 s [10.1–14.9], $0.0051 [0.0042–0.0062]`."""
    assert choice.seconds is not None
    text = f"{number(choice.seconds)} s {_range(choice.low, choice.high)}"
    if choice.dollars is not None:
        text += f", ${number(choice.dollars)} {_range(choice.dollars_low, choice.dollars_high)}"
    return text


def _range(low: float | None, high: float | None) -> str:
    ends = ["never" if end is None else number(end) for end in (low, high)]
    return f"[{'–'.join(ends)}]"


def _odds(advice: Advice) -> Iterable[str]:
    best = advice.best
    if best is None:
        return
    likely = [(other.odds, other) for other in advice.others if other.odds is not None and other.odds >= _SHOWN]
    rivals = sorted(likely, key=lambda pair: -pair[0])[:2]
    following = (
        joined(f"{other.label} {_two(odds)}" for odds, other in rivals)
        if rivals
        else "all others have less than 0.01"
    )
    lead = "Clear" if advice.verdict == "clear" else "Too close to call"
    among = "first of the trained candidates" if advice.may_be_faster else "first"
    yield f"{lead}: the odds that {best.label} is {among} are {_two(advice.odds)}; {following}."
    for odds, other in rivals:
        if odds > advice.odds:
            reaching = f"reaches the target in only {other.reaching:.0%} of the draws"
            longest = "never reach the target" if other.high is None else f"take {number(other.high)} s"
            later = f"may {longest}: its range is wider"
            yield f"{other.label} has higher odds, but {reaching if other.seconds is None else later}."
    if advice.nobody is not None and advice.nobody >= _SHOWN:
        yield f"The odds that no candidate reaches the target are {_two(advice.nobody)}."
    if advice.may_be_faster:
        untold = ", ".join(advice.may_be_faster)
        yield f"No probe tells whether these are faster: {untold}. More --minutes train them."
    if advice.verdict == "close" and (advice.decide is not None or not advice.may_be_faster):
        yield _decides(advice.decide, " among the trained candidates" if advice.may_be_faster else "")


def _decides(decide: Decide | None, among: str) -> str:
    if decide is None:
        return "No single measurement decides: none is expected to raise the top odds."
    measurement = {
        "seeds": "more seeds of each candidate",
        "probe": "a longer probe (--minutes)",
        "bandwidth": "a measurement of the bandwidth between the nodes",
        "computing": "a step recorded on a node of the cluster",
        "replay": f"a check of replays of {decide.method} (istbench lab validate --methods {decide.method})",
    }[decide.kind]
    if decide.odds < CLEAR:
        return (
            f"No single measurement decides{among}. The one that helps most is {measurement}: top odds of about "
            f"{_two(decide.odds)}."
        )
    return (
        f"The measurement that would decide{among}: {measurement}. It raises the top odds to about "
        f"{_two(decide.odds)}."
    )


def _why(advice: Advice) -> Iterable[str]:
    shown = [choice for choice in advice.choices if choice.seconds is not None][:2]
    for choice in shown if advice.best else []:
        assert choice.seconds is not None
        assert choice.computing is not None
        assert choice.exposed is not None
        yield (
            f"{choice.label}: {number(choice.computing * choice.seconds)} s of computing, "
            f"{number(choice.exposed * choice.seconds)} s of exposed communication, {_steps(choice)} local steps"
        )


def _steps(choice: RankedChoice) -> str:
    assert choice.steps is not None
    return f"{choice.steps:,.0f}{' (extrapolated)' if choice.extrapolated else ''}"


def _flips(advice: Advice) -> Iterable[str]:
    flips = advice.flips
    yield f"Bandwidth: {_flip(flips.bandwidth, lambda bits: bandwidth_text(bits, 3))}"
    yield f"Latency: {_flip(flips.latency, lambda seconds: f'{seconds * 1e3:.3g} ms')}"
    yield f"Nodes: {_flip(flips.nodes, lambda count: f'{count:.0f} nodes')}"


def _flip(flip: Flip, form: NumberForm) -> str:
    never_run = "; extrapolated: nobody trained there or checked the memory of a node" if flip.extrapolated else ""
    if flip.value is None:
        return f"{flip.reason}{never_run}"
    apart = f" ({flip.reason})" if flip.reason else ""
    beyond = f"from {form(flip.value)} {'up' if flip.side == 'above' else 'down'}"
    return f"{beyond}, {flip.first} becomes first of the trained candidates{apart}{never_run}"


def _two(odds: float) -> str:
    """Odds with two decimals, rounded towards doubt: `0.99` for 1, and `0.79` just below a clear answer."""
    return f"{min(odds, 0.99 if odds >= CLEAR else CLEAR - 0.01):.2f}"


def _odds_entry(choice: RankedChoice) -> Entry:
    return NOTHING if choice.odds is None else Entry(text=_two(choice.odds), value=choice.odds)


def _seconds_entry(choice: RankedChoice) -> Entry:
    if choice.seconds is None:
        return NOTHING if choice.why_not else Entry(text="not expected", value=None)
    text = f"{number(choice.seconds)} {_range(choice.low, choice.high)}"
    return Entry(text=text, value={"seconds": choice.seconds, "low": choice.low, "high": choice.high})


_COLUMNS: list[ColumnOf[RankedChoice]] = [
    column("candidate", "candidate", lambda one: one.label, align="left"),
    column("odds", "odds of first", _odds_entry),
    column("seconds", "seconds to target", _seconds_entry),
    column("dollars", "USD", lambda one: rounded(one.dollars), optional=True),
    column(
        "steps",
        "local steps",
        lambda one: NOTHING if one.steps is None else Entry(text=_steps(one), value=one.steps),
    ),
    column("computing", "computing", lambda one: percent(one.computing)),
    column("exposed", "exposed communication", lambda one: percent(one.exposed)),
    column("seeds", "seeds", lambda one: one.seeds),
    column("diverged", "diverged", lambda one: one.diverged or None, optional=True),
    column("steps_probed", "steps probed", lambda one: one.steps_probed),
    column("why_not", "no odds because", lambda one: one.why_not, align="left", optional=True),
]
