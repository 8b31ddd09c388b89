"""Sentences and words that tables and plots share."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from istbench.base.options.data_source import DataSource
from istbench.base.units import counted, period_text
from istbench.cluster.clock import ClusterTime
from istbench.cluster.profile import ClusterProfile, bandwidth_text, network_words
from istbench.cluster.replay_checks import Check, packaged_checks
from istbench.cluster.scale import on_gpus
from istbench.report.targets import EvaluationError, Target
from istbench.results.metrics import Metric, Source
from istbench.results.stats import interval_name

if TYPE_CHECKING:
    from istbench.cluster.faults import Faults

_PROCESSORS = 3000.0  # GFLOP/s that GPUs reach and processors do not


class Lead(str):
    """A line of a footer that a terminal prints without `--explain`: data, clock and budget, seeds."""

    __slots__ = ()


class Caution(str):
    """A line of a footer that every output prints: a warning, or the meaning of a mark in the table."""

    __slots__ = ()


ROUGH = "~"
"""Marks a time that is interpolated from step 0."""

ROUGH_LINE = Caution(
    f"{ROUGH}: reached before the first evaluation, so interpolated from step 0. A smaller --eval-every gives a "
    "better time."
)


def count_nodes(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return counted(count, "node")


def count_threads(count: int) -> str:
    """`1 thread`, `2 threads`."""
    return counted(count, "thread")


def data_line(source: DataSource) -> str:
    """A line of a footer: the data, its share of the whole, and its fingerprint."""
    line = f"Data: {source.seen}, fingerprint {source.comparable[:12]}."
    return Lead(f"{line} These figures say nothing about the real dataset." if source.kind == "synthetic" else line)


def guide_line(place: str) -> str:
    """A line of a footer that links the rules of its table: a page and a heading, as in `tables.md#crossings`."""
    return f"How to read this table: docs/{place}"


_LONG_S = 1e-3  # of latency
_DIRECTIONS: dict[Source, str] = {
    "recorded": "",
    "name": ", by its name",
    "curves": ", by its curves beside those of the workload's own metric",
    "assumed": ", which is an assumption",
}


def metric_line(metric: Metric, *, own: bool) -> Iterable[str]:
    """A line for a footer: the direction of `metric`, unless it is the workload's `own` and surely rises."""
    if metric.lower_is_better or not own or metric.source == "assumed":
        line = f"Metric: {metric.title}, {metric.direction}{_DIRECTIONS[metric.source]}."
        yield line if metric.source in ("recorded", "name") else Caution(line)


def close_targets_line(close: Sequence[Sequence[Target]], error: EvaluationError | None) -> Iterable[str]:
    """A warning for a footer if targets are so `close` that evaluations of this `error` cannot tell them apart."""
    if not close or error is None:
        return
    largest = max(error.at(target.level) for run in close for target in run)
    named = "; ".join(joined(target.level_text for target in run) for run in close)
    known = (
        f"An evaluation has {error.samples:,} samples, so its standard error is up to {largest:.2g}."
        if error.recorded is None
        else f"The runs recorded a standard error of up to {largest:.2g} for an evaluation."
    )
    yield Caution(
        f"Careful: targets closer than two standard errors: {named}. {known} Differences between times to these "
        "targets may be chance; compare the seconds to the end or the samples per second."
    )


def joined(words: Iterable[str], most: int | None = None) -> str:
    """`a`, `a and b`, `a, b and c`; with `most` words of more, `a, b and 7 more`."""
    *first, last = words
    if most is not None and len(first) >= most:
        first, last = first[:most], f"{len(first) + 1 - most} more"
    return f"{', '.join(first)} and {last}" if first else last


def counted_winners(winners: Sequence[str], cells: int) -> str:
    """`ist in all 7 cells`, or `ist in 5 of 8 cells, ddp in 2`, the most frequent first. winners: one a cell."""
    (first, most), *others = Counter(winners).most_common()
    if most == cells:
        return f"{first} in all {cells} cells" if cells > 1 else first
    return ", ".join([f"{first} in {most} of {cells} cells", *(f"{name} in {count}" for name, count in others)])


def interval_names(seeds: Iterable[int]) -> str:
    """The kinds of intervals of rows with so many `seeds`; empty if none has several."""
    return " or ".join(sorted({interval_name(count) for count in seeds if count > 1}))


def fault_words(faults: "Faults") -> str:
    """The rate of simulated `faults` and what each of them costs, as the end of a line."""
    return (
        f"of each node one in {period_text(faults.mtbf_s)} on average; each ends all nodes, which go on from the "
        f"last checkpoint after {period_text(faults.restart_s)}. Checkpoints follow evaluations, "
        f"{period_text(faults.checkpoint_s)} apart or more."
    )


def is_lower_bound(device: str, profile: ClusterProfile | None) -> bool:
    """Whether runs were recorded on processors and replayed on a cluster as fast as GPUs."""
    return device == "cpu" and profile is not None and profile.gflops > _PROCESSORS


def sustained_line(profile: ClusterProfile) -> Iterable[str]:
    """A line for a footer if links are faster for a limited time than the replay has them."""
    if profile.burst_bandwidth is None:
        return
    sustained, burst = (bandwidth_text(rate) for rate in (profile.bandwidth_out, profile.burst_bandwidth))
    times = profile.burst_bandwidth / min(profile.bandwidth_out, profile.bandwidth_in)
    yield (
        f"Network: {profile.name} at its sustained {sustained}. While burst credits last, its links may carry "
        f"{burst}: messages of short runs are up to {times:.2g} times as fast. `--bandwidth "
        f"{profile.burst_bandwidth / 1e9:g}gbit` beside the same --cluster shows such runs."
    )


def network_line(profile: ClusterProfile) -> Iterable[str]:
    """A line for a footer if there is more to the network than one link of each node."""
    words = network_words(profile)
    if words:
        yield f"Network: {'; '.join(words)}."


def lower_bound_line(device: str, profile: ClusterProfile) -> Iterable[str]:
    """A warning for a footer if `is_lower_bound`."""
    if is_lower_bound(device, profile):
        yield Caution(
            f"Careful: {profile.name} computes as fast as GPUs do, but these runs were recorded on processors. The "
            "seconds are a lower bound; runs recorded on a GPU give better ones."
        )


def replay_lines(times: Sequence[ClusterTime], profile: ClusterProfile, device: str = "") -> Iterable[str]:
    """The lines of a footer about `times`, replayed on `profile` from records of `device`."""
    yield from sustained_line(profile)
    yield from scaling_lines(times, profile)
    yield from lower_bound_line(device, profile)
    yield from checks_line(times)
    yield from unlike_lines(times)


def checked_methods(times: Iterable[ClusterTime]) -> tuple[list[Check], list[str]]:
    """The checks in a lab of the replays in `times`, one for each method, and the methods without a check."""
    checks = {time.check.method: time.check.check for time in times if time.check is not None}
    known = [check for check in checks.values() if check is not None]
    return known, [method for method, check in checks.items() if check is None]


def largest_error(times: Iterable[ClusterTime]) -> float:
    """The largest error of replays of the methods of `times` in a lab, as a share; 0 if unknown."""
    known, _ = checked_methods(times)
    return max((abs(check.largest) for check in known), default=0.0)


def checks_line(times: Sequence[ClusterTime]) -> Iterable[str]:
    """A warning for a footer if replays of some methods were never checked in a lab, or were over 5 % off there.

    Another line tells the error at a long latency.
    """
    known, unknown = checked_methods(times)
    said = [
        f"replays of {check.method} were off by up to {abs(check.largest):.1%} in a lab ({check.where})"
        for check in known
        if check.is_off
    ]
    if unknown:
        said.append(
            f"replays of {joined(unknown)} were never checked in a lab: `istbench lab validate --methods "
            f"{','.join(unknown)}` checks them"
        )
    if said:
        yield Caution(f"Careful: {'; '.join(said)}.")
    yield from latency_line(max((time.profile.latency_s for time in times), default=0.0))


def latency_line(latency_s: float) -> Iterable[str]:
    """A line for a footer if the longest latency of its replays counts: how far replays were off in a lab."""
    check = packaged_checks().latency
    if latency_s >= _LONG_S:
        yield Caution(
            f"Careful: at latencies of {check.least_s * 1e3:g} to {check.most_s * 1e3:g} ms, {check.measurements} "
            f"replays were {check.median:.1%} off a lab in the median, {check.furthest:+.1%} at most "
            f"({check.where})."
        )


def off_words(times: Sequence[ClusterTime]) -> str:
    """A sentence: how far replays of these methods were off in a lab, and which were never checked."""
    known, unknown = checked_methods(times)
    said = []
    if known:
        worst = max(known, key=lambda check: abs(check.largest))
        said.append(f"replays were off by up to {abs(worst.largest):.1%} in a lab ({worst.method}, {worst.where})")
    if unknown:
        said.append(f"those of {joined(unknown)} were never checked")
    text = "; ".join(said) or "how far the replays are off is unknown"
    return f"{text[0].upper()}{text[1:]}."


def unlike_lines(times: Sequence[ClusterTime]) -> Iterable[str]:
    """A warning for a footer if some runs began with messages that the replays leave out."""
    steps = max((time.unlike_steps for time in times), default=0)
    if steps:
        yield Caution(
            f"Careful: the first {steps:,} local steps of a run sent other messages than its later steps. The "
            "replay takes all steps for later ones."
        )


def doubt_lines(doubts: Sequence[tuple[str, str]], total: int) -> Iterable[str]:
    """A warning for a footer if replayed seconds may be far off. doubts: names of such runs, each with a reason."""
    if doubts:
        name, reason = doubts[0]
        yield Caution(
            f"Careful: the seconds of {len(doubts)} of {total} runs may be far off, for example {name}: {reason}. "
            "On a quiet machine, run istbench retrace, or the cells with --again."
        )


def scaling_lines(times: Sequence[ClusterTime], profile: ClusterProfile) -> Iterable[str]:
    """Lines of a footer: how recorded computing became seconds of `profile`, and how far that is known."""
    lacking = sorted({time.lacks for time in times if time.lacks})
    if lacking:
        yield Caution(
            f"Scaled by matrix products alone, because {' and '.join(lacking)} lack"
            f"{'' if len(lacking) > 1 else 's'} the speed of memory: no range is known."
        )
    if any(time.low is not None for time in times):
        yield (
            "The range of replayed seconds is that of computing: the changes of the recording machine's speed, and "
            "the time that neither matrix products nor memory explain. It leaves out errors of the profile."
        )
    if on_gpus(profile) and any(time.works for time in times):
        yield (
            f"The processors beside the GPU of {profile.name} are unknown: updates of served parameters, and "
            "batches made ahead, take as long as recorded."
        )
