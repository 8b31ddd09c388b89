"""Sort runs into tables of comparable runs (groups) and rows (contenders)."""

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from istbench.base.decode import encode_own
from istbench.base.options.data_source import DataSource
from istbench.base.options.defaults import BASELINE
from istbench.base.options.options import option_text
from istbench.base.options.run import COMPUTING, TELLING_APART, TELLING_METHODS_APART, Lab
from istbench.cluster.clock import ClusterTime, dollars
from istbench.cluster.profile import ClusterProfile
from istbench.report.phrases import count_nodes, joined
from istbench.report.targets import EvaluationError, Target, close_targets, evaluation_error, resolve_targets
from istbench.results.curves import Clock, Reached
from istbench.results.header import Header, HostRecord, NodeSeconds
from istbench.results.load import Run
from istbench.results.metrics import Metric
from istbench.results.slow_node import Straggler, median_node_seconds, straggler
from istbench.results.stats import SeedMedian, median, seed_median

_NAMED, _NAMES_WIDTH = 5, 60
_CLOCK_NAMES: dict[Clock, str] = {"train_s": "train", "wall_s": "wall", "cluster_s": "replayed"}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One row: a method with its options on a number of nodes.

    runs: the finished runs, one for each seed, by seed. settings: values of the options of method and computing.
    diverged: the runs of other seeds that diverged: each misses every target, and ends at the worst value.
    name: the label without the options that all rows of the group share. in_words: its name in a sentence, which
    is the method alone where no other row of the group has other options of that method.
    narrowed: options of the workload in a row at the width of a subnet of another row, beside those of the group.
    """

    label: str
    method: str
    nodes: int
    runs: tuple[Run, ...]
    diverged: tuple[Run, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    in_words: str = ""
    narrowed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def placed(self) -> str:
        """`ist on 4 nodes`."""
        return f"{self.in_words} on {count_nodes(self.nodes)}"

    def _reached(self, level: float) -> dict[int, Reached | None]:
        """The point at which each seed reaches `level`; None for a miss."""
        found = {run.header.seed: run.reached(level) for run in self.runs}
        return found | {run.header.seed: None for run in self.diverged}

    def seconds(self, level: float) -> dict[int, float]:
        """Train seconds to `level` by seed; a miss is infinity."""
        return {seed: there.seconds if there else math.inf for seed, there in self._reached(level).items()}

    def time(self, level: float) -> SeedMedian:
        """The entry of a table for `seconds`."""
        return seed_median(self.seconds(level).values())

    def megabytes(self, level: float) -> dict[int, float]:
        """Megabytes that the busiest node sent up to `level`, by seed; a miss is infinity."""
        found = self._reached(level)
        return {seed: there.bytes_sent_per_node / 1e6 if there else math.inf for seed, there in found.items()}

    def from_start(self, level: float) -> bool:
        """Whether a seed's time to `level` is interpolated from step 0."""
        return any(there is not None and there.from_start for there in self._reached(level).values())

    def finals(self) -> dict[int, float]:
        """The final value by seed. No number counts as the worst value."""
        worst = self.runs[0].curve.metric.worst
        found = {run.header.seed: run.curve.final() for run in self.runs}
        found |= {run.header.seed: None for run in self.diverged}
        return {seed: worst if final is None else final for seed, final in found.items()}

    @property
    def seeds(self) -> int:
        return len(self.runs) + len(self.diverged)

    def trained(self) -> SeedMedian:
        return seed_median([run.curve.seconds[-1] for run in self.runs])

    @property
    def times(self) -> list[ClusterTime]:
        """The replayed times of its runs; none if they are measured."""
        return [run.cluster for run in self.runs if run.cluster is not None]

    def time_share(self, name: str) -> float:
        """Share of its replayed time, field `name` of `ClusterTime`, as the median over seeds."""
        return median([getattr(time, name) for time in self.times])

    @property
    def known_range(self) -> tuple[float, float] | None:
        """The replayed seconds as far as their computing is known, below and above, as factors.

        None if they are not replayed, or if the range of a run is unknown.
        """
        times = self.times
        low = [time.low for time in times if time.low is not None]
        high = [time.high for time in times if time.high is not None]
        if not times or len(low) < len(times) or len(high) < len(times):
            return None
        return min(low), max(high)

    @property
    def known_percent(self) -> str:
        """`-5 to +28`: `known_range` in percent off the seconds; empty if it is unknown."""
        return " to ".join(f"{100 * (end - 1):+.0f}" for end in self.known_range or ())

    @property
    def extrapolated_from(self) -> int | None:
        """Nodes of the recorded run, if any run of the row was never run but dealt from it; else None."""
        return next((run.extrapolated_from for run in self.runs if run.extrapolated_from), None)

    @property
    def shares_a_batch(self) -> bool:
        """Whether all nodes take the same minibatch: a step then counts its samples once."""
        ends = [(run.curve.evaluations[-1], run.header.batch_size) for run in self.runs]
        return self.nodes > 1 and any(0 < end.samples <= end.step * size for end, size in ends)

    @property
    def header(self) -> Header:
        """The header of its first run; others differ in the seed and in results."""
        return self.runs[0].header

    @property
    def trials(self) -> int:
        """Trials of `istbench tune` that chose the options; the fewest of its runs."""
        return min((run.header.config.tuned or 0 for run in self.runs), default=0)

    @cached_property
    def node_seconds(self) -> tuple[NodeSeconds, ...]:
        """Seconds of each node, as medians over its runs; empty without a record.

        Of replayed runs, those on the cluster.
        """
        if self.times:
            return median_node_seconds([_replayed_seconds(time) for time in self.times])
        results = [run.header.result for run in self.runs]
        return median_node_seconds([result.node_seconds for result in results if result and result.node_seconds])

    @cached_property
    def straggler(self) -> Straggler | None:
        """Its slow node, by `node_seconds`."""
        return straggler(self.node_seconds, self.shares)

    @property
    def shares(self) -> tuple[float, ...]:
        """Relative speeds by which unequal nodes shared the work of its runs, by rank; empty if they are equal."""
        return self.runs[0].shares

    def result(self, name: str) -> list[float]:
        """Field `name` of the result of each run that has it."""
        results = [run.header.result for run in self.runs]
        values = [getattr(result, name) for result in results if result is not None]
        return [value for value in values if value is not None]


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Comparable runs: the same workload, data, batch size, budget and timing rule, on one machine.

    Rows at a subnet's width have a narrower model than the others, and their labels say so.

    data: kind of the data. source: data of one of the runs, with a name if any run has one; all have equal content.
    contenders: in the order of the table, by nodes. unfinished: runs that are not done; those that diverged count
    beside other seeds of their row. profile: the cluster of a replay.
    """

    workload: str
    workload_label: str
    metric: Metric
    data: str
    source: DataSource
    batch_size: int
    budget: str
    device: str
    host: HostRecord
    timing_rule: int
    contenders: tuple[Contender, ...]
    unfinished: tuple[Run, ...]
    profile: ClusterProfile | None = None

    @property
    def runs(self) -> list[Run]:
        return [run for contender in self.contenders for run in contender.runs]

    def label_of(self, run: Run) -> str:
        return next(row.label for row in self.contenders if any(own is run for own in row.runs))

    @property
    def times(self) -> list[ClusterTime]:
        """The replayed times of the finished runs."""
        return [time for row in self.contenders for time in row.times]

    def dollars(self, row: Contender, seconds: float) -> float | None:
        """Price of `seconds` of `row`, USD; None if they are measured or infinite, or without a price."""
        if self.profile is None or math.isinf(seconds):
            return None
        return dollars(self.profile, row.nodes, seconds)

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """The targets of the table, the easiest first; see `resolve_targets`."""
        return resolve_targets(self.runs)

    @cached_property
    def evaluation_error(self) -> EvaluationError | None:
        """The standard error of an evaluation; None if it is unknown."""
        return evaluation_error(self.runs, self.targets)

    @cached_property
    def close_targets(self) -> list[list[Target]]:
        """Runs of targets within two standard errors of an evaluation; see `close_targets`."""
        return close_targets(self.targets, self.evaluation_error)

    @property
    def sharing_a_batch(self) -> tuple[str, ...]:
        """Names of the methods whose nodes take one minibatch together."""
        return tuple(sorted({row.method for row in self.contenders if row.shares_a_batch}))

    def is_control(self, row: Contender) -> bool:
        """Whether `row` only tells the cause of a gain of other rows: no answer or map names it as the first.

        It has a subnet's width, or it is the control of its method on few nodes.
        """
        return bool(row.narrowed) or self.is_on_few_nodes(row)

    def is_on_few_nodes(self, row: Contender) -> bool:
        """Whether `row` is the control of its method on few nodes, with a row of the method on more nodes."""
        return row.nodes == row.header.control_nodes and any(
            other.method == row.method and other.nodes > row.nodes for other in self.contenders
        )

    @property
    def competing(self) -> list[Contender]:
        """The rows that are no controls."""
        return [row for row in self.contenders if not self.is_control(row)]

    @property
    def of_rows(self) -> str:
        """The `competing` rows, for an answer: ` of ddp, ist and p3 on 1 and 2 nodes`; empty for a single row."""
        rows = self.competing
        if len(rows) < 2:
            return ""
        names = list(dict.fromkeys(row.in_words for row in rows))
        if len(names) > _NAMED or sum(map(len, names)) > _NAMES_WIDTH:
            return f" of {len(rows)} rows"
        nodes = sorted({row.nodes for row in rows})
        return f" of {joined(names)}" + (f" on {joined(map(str, nodes))} nodes" if len(nodes) > 1 else "")

    @property
    def unequal_trials(self) -> str:
        """Trials of `istbench tune` of the `competing` rows: `none for ddp on 2 nodes; 20 for ist on 2 nodes`.

        More than two rows with the most trials are `every other row`. Empty if all have equally many.
        """
        by_trials = defaultdict[int, list[str]](list)
        for row in self.competing:
            by_trials[row.trials or 0].append(row.placed)
        if len(by_trials) < 2:
            return ""
        *fewer, (most, names) = sorted(by_trials.items())
        last = "every other row" if len(names) > 2 else joined(names)
        return "; ".join([*(f"{count or 'none'} for {joined(own)}" for count, own in fewer), f"{most} for {last}"])

    @property
    def tuning(self) -> str:
        """`untuned`, `tuned unequally` or `tuned by 20 trials each`, of the `competing` rows."""
        trials = {row.trials for row in self.competing}
        if trials <= {0}:
            return "untuned"
        return "tuned unequally" if len(trials) > 1 else f"tuned by {trials.pop()} trials each"

    @property
    def among(self) -> str:
        """The contenders, and how they trained: `ddp and ist; untuned; cosine over 20 epochs`."""
        methods = joined(dict.fromkeys(row.method for row in self.competing)) if self.competing else "no method"
        schedules = sorted({str(row.settings["schedule"]) for row in self.competing if "schedule" in row.settings})
        rate = "constant learning rate" if schedules == ["constant"] else joined(schedules) if schedules else ""
        return "; ".join([methods, self.tuning, f"{rate} over {self.budget}" if rate else self.budget])

    @property
    def batch_words(self) -> str:
        """The batch size, the nodes that it is for, and the samples of an optimizer step that takes several."""
        rows = sorted({(row.header.minibatches_a_step, row.nodes) for row in self.contenders})
        steps = [
            f"{count * nodes * self.batch_size:,} samples an optimizer step with {count} minibatches a node on "
            f"{count_nodes(nodes)}"
            for count, nodes in rows
            if count > 1
        ]
        return "; ".join([self._batch_words, *steps])

    @property
    def _batch_words(self) -> str:
        each, together = f"batch size {self.batch_size} per node", f"one batch of {self.batch_size} for all nodes"
        if not self.sharing_a_batch:
            return each
        if all(row.shares_a_batch or row.nodes == 1 for row in self.contenders):
            return together
        return f"{each}; {together} with {joined(self.sharing_a_batch)}"

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """Options that all labels contain and names leave out, such as `lr=0.3`."""
        return _shared_options(self.contenders)

    def name_of(self, label: str) -> str:
        return next(contender.name for contender in self.contenders if contender.label == label)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Numbers of nodes of the finished runs, rising."""
        return tuple(sorted({contender.nodes for contender in self.contenders}))

    @property
    def clock(self) -> Clock:
        if self.profile is not None:
            return "cluster_s"
        return next((run.curve.clock for run in self.runs), "train_s")

    @property
    def machine(self) -> str:
        if self.profile is not None:
            return self.profile.name
        return self.host.words(self.device)

    @property
    def clock_words(self) -> str:
        """The seconds of this group in words, for titles."""
        return f"{_CLOCK_NAMES[self.clock]} seconds"

    @property
    def time_name(self) -> str:
        return f"{_CLOCK_NAMES[self.clock]} time"

    @property
    def study(self) -> str:
        """A key that groups of comparable runs on several clocks and machines share."""
        return repr(
            (
                self.workload_label, self.metric.name, self.metric.apart, self.source.comparable, self.batch_size,
                self.budget, self.device, self.timing_rule,
            )
        )  # fmt: skip

    @property
    def stem(self) -> str:
        """A file name of this group alone, safe on every system."""
        return self.stem_on(self.machine)

    def stem_on(self, machine: str) -> str:
        """As `stem`, with the name of a `machine` that stands for those of several groups."""
        defining = [
            self.workload_label, self.metric.name, self.data, self.source.comparable, self.batch_size, self.budget,
            self.device, machine, self.profile is None and self.host.machine, self.timing_rule, self.clock,
            *self.metric.apart,
        ]  # fmt: skip
        digest = hashlib.sha256(json.dumps(defining, sort_keys=True).encode()).hexdigest()[:6]
        readable = _file_name(self.workload_label) or "workload"
        on = f"-{_file_name(machine)}" if self.clock == "cluster_s" else ""
        return f"{readable}{on}-{digest}"


def _replayed_seconds(time: ClusterTime) -> tuple[NodeSeconds, ...]:
    end = time.seconds[-1]
    return tuple(
        NodeSeconds(rank=rank, host="", computing_s=share * end, waiting_s=max(0.0, 1 - share) * end)
        for rank, share in enumerate(time.computing)
    )


def by_study(groups: Iterable[RunGroup]) -> list[list[RunGroup]]:
    """`groups` by their studies, each in order."""
    studies: dict[str, list[RunGroup]] = defaultdict(list)
    for group in groups:
        studies[group.study].append(group)
    return list(studies.values())


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The same runs on one cluster at several bandwidths.

    cluster: its name without a bandwidth. groups: the runs at each bandwidth, rising.
    """

    cluster: str
    groups: tuple[RunGroup, ...]

    @property
    def bandwidths(self) -> tuple[float, ...]:
        """Bandwidths of a node's link in bits/s, rising."""
        profiles = [group.profile for group in self.groups if group.profile is not None]
        return tuple(profile.bandwidth_out / profile.payload for profile in profiles)

    @property
    def stem(self) -> str:
        return self.groups[0].stem_on(self.cluster)

    @property
    def compares(self) -> bool:
        """Whether there are several bandwidths, and a target to which their seconds are compared."""
        return len(self.groups) > 1 and bool(self.groups[0].targets)

    def rows(self, nodes: int) -> list[tuple[Contender, ...]]:
        """The rows on `nodes` nodes, in the order of the table, each at every bandwidth."""
        tables = [{row.label: row for row in group.contenders if row.nodes == nodes} for group in self.groups]
        return [tuple(table[label] for table in tables) for label in tables[0]]


def sweeps_of(cluster: str, groups: Iterable[Sequence[RunGroup]]) -> list[Sweep]:
    """A sweep for each table of runs on `cluster`. groups: the groups at each bandwidth, rising.

    The runs are the same at every bandwidth, so their groups come in the same order.
    """
    return [Sweep(cluster=cluster, groups=same) for same in zip(*groups, strict=True)]


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:40].strip("-")


def group_runs(
    runs: Sequence[Run], baseline: str = BASELINE, profile: ClusterProfile | None = None
) -> list[RunGroup]:
    """The groups among `runs`; in each, `baseline` leads the rows of every number of nodes.

    profile: the cluster on which the runs were replayed. The machine that ran them then does not matter.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    alike: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_key(run, profile, run.header.workload_label)].append(run)
        alike[_key(run, profile, "of any width")].append(run)
    found = [
        (members, _at_subnets_width(members, alike[_key(members[0], profile, "of any width")]))
        for _, members in sorted(groups.items())
    ]
    elsewhere = {id(run) for _, narrow in found for run, _ in narrow}
    return [
        _group(members, narrow, baseline, profile)
        for members, narrow in found
        if not all(id(run) in elsewhere for run in members)
    ]


def _key(run: Run, profile: ClusterProfile | None, model: str) -> str:
    """Runs with an equal key are comparable; `model`: a label of the workload with the options of its model."""
    header = run.header
    values = [
        header.workload, model, header.data, header.data_source.comparable, header.batch_size,
        header.budget, run.curve.metric.name, header.timing_rule, header.config.device,
        None if profile else msgspec.to_builtins(header.host), run.curve.metric.apart,
    ]  # fmt: skip
    return _text(values)


def _at_subnets_width(members: Sequence[Run], alike: Sequence[Run]) -> list[tuple[Run, Mapping[str, Any]]]:
    """Those runs of `alike` whose model is as wide as the subnets of a run of `members`, with its narrower options.

    Their method trains the whole model, and has a row among `members` on as many nodes.
    """
    narrowed = {
        _model_on(run.header.nodes, {**run.header.config.workload_options, **run.header.narrowed}): (
            run.header.narrowed
        )
        for run in members
        if run.header.narrowed and run.extrapolated_from is None
    }
    there = {(run.header.method_label, run.header.nodes) for run in members}
    found = [
        (run, narrowed.get(_model_on(run.header.nodes, run.header.config.workload_options)))
        for run in (alike if narrowed else ())
        if not run.header.narrowed and (run.header.method_label, run.header.nodes) in there
    ]
    return [(run, options) for run, options in found if options is not None]


def _model_on(nodes: int, options: Mapping[str, Any]) -> str:
    return _text([nodes, options])


def _text(values: Any) -> str:
    return msgspec.json.encode(values, enc_hook=str, order="sorted").decode()


def _group(
    runs: list[Run], narrow: list[tuple[Run, Mapping[str, Any]]], baseline: str, profile: ClusterProfile | None
) -> RunGroup:
    header = runs[0].header
    contenders = _contenders(runs)
    for options in {_model_on(0, options): options for _, options in narrow}.values():
        contenders += [
            dataclasses.replace(c, label=_label(c.label, options, {*options}), narrowed=options)
            for c in _contenders([run for run, own in narrow if own == options])
        ]
    shared = _shared_options(contenders)
    contenders = [dataclasses.replace(c, name=_name(c, shared)) for c in contenders]
    variants = Counter(method for method, _ in {(c.method, c.name) for c in contenders})
    contenders = [
        dataclasses.replace(c, in_words=c.name if variants[c.method] > 1 else c.method) for c in contenders
    ]
    runs = [*runs, *(run for run, _ in narrow)]
    method, _ = split_label(baseline)
    metrics = [run.curve.metric for run in runs]
    contenders.sort(key=lambda c: (c.nodes, c.label != baseline, c.method != method, c.method, c.label))
    return RunGroup(
        workload=header.workload,
        workload_label=header.workload_label,
        metric=next((own for own in metrics if own.source == "recorded"), metrics[0]),
        data=header.data,
        source=max((run.header.data_source for run in runs), key=lambda source: (source.name, source.path)),
        batch_size=header.batch_size,
        budget=header.budget,
        device=header.config.device,
        host=header.host,
        timing_rule=header.timing_rule,
        contenders=tuple(contenders),
        unfinished=tuple(run for run in runs if not run.done),
        profile=profile,
    )


def _contenders(runs: list[Run]) -> list[Contender]:
    rows: dict[tuple[str, int], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    diverged: dict[tuple[str, int, str], list[Run]] = defaultdict(list)
    for run in runs:
        settings = _text(_settings(run))
        if run.done:
            rows[run.header.method_label, run.header.nodes][settings].append(run)
        elif run.diverged:
            diverged[run.header.method_label, run.header.nodes, settings].append(run)
    differing: dict[str, set[str]] = defaultdict(set)
    for (label, _), variants in rows.items():
        settings_of = [_settings(members[0]) for members in variants.values()]
        for name in {name for settings in settings_of for name in settings}:
            if any(settings.get(name) != settings_of[0].get(name) for settings in settings_of):
                differing[label].add(name)
    for nodes in {nodes for _, nodes in rows}:
        there = {label: variants.values() for (label, own), variants in rows.items() if own == nodes}
        for name in TELLING_METHODS_APART:
            if _differ([members[0] for variants in there.values() for members in variants], name):
                for label in there:
                    differing[label].add(name)
    return [
        Contender(
            label=_label(label, _settings(members[0]), differing[label]),
            method=members[0].header.method,
            nodes=nodes,
            runs=tuple(sorted(_latest(members), key=_seed)),
            diverged=tuple(sorted(_other_seeds(diverged[label, nodes, settings], members), key=_seed)),
            settings=row_settings(members[0]),
        )
        for (label, nodes), variants in rows.items()
        for settings, members in variants.items()
    ]


def _latest(runs: Iterable[Run]) -> Iterable[Run]:
    """The last finished run of each seed. Two cells may differ in words alone: `--threads 2` where 2 are usual."""
    return {run.header.seed: run for run in sorted(runs, key=lambda run: run.header.finished_at or "")}.values()


def _seed(run: Run) -> int:
    return run.header.seed


def _other_seeds(runs: Iterable[Run], finished: Iterable[Run]) -> list[Run]:
    done = {run.header.seed for run in finished}
    return [run for run in _latest(runs) if run.header.seed not in done]


def _differ(runs: Sequence[Run], name: str) -> bool:
    """Whether the setting `name` differs between `runs` of several methods on as many nodes.

    Intervals in steps are compared as samples. An epoch is a whole number of steps, so they may differ by a step of
    all nodes.
    """
    values = [_settings(run)[name] for run in runs]
    if all(value == values[0] for value in values):
        return False
    ends = [run.curve.evaluations[-1] for run in runs]
    if name != "eval_every" or not all(isinstance(value, int) for value in values) or not all(e.step for e in ends):
        return True
    per_step: list[float] = [end.samples / end.step for end in ends]
    if min(per_step) == max(per_step):
        return True
    samples: list[float] = [value * each for value, each in zip(values, per_step, strict=True)]
    return max(samples) - min(samples) > runs[0].header.batch_size * runs[0].header.nodes


def row_settings(run: Run) -> dict[str, Any]:
    """Values of the options of the run's method and of computing."""
    everything = _settings(run)
    computing = {name: everything[name] for name in COMPUTING if name in everything}
    return {**run.header.config.method_options, **computing}


def split_label(label: str) -> tuple[str, dict[str, str]]:
    """The method of a label such as `ddp lr=0.3`, and its options as texts."""
    method, *words = label.split(" ")
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name:
            options[name] = value
        elif options:  # of a value of several words
            last = next(reversed(options))
            options[last] += f" {word}"
        else:
            method += f" {word}"
    return method, options


def _shared_options(contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Options with one value in all labels, as texts; none for a single label."""
    labels = {contender.label for contender in contenders}
    if len(labels) < 2:
        return ()
    first, *others = (split_label(label)[1].items() for label in sorted(labels))
    return tuple(f"{name}={value}" for name, value in first if all((name, value) in other for other in others))


def _name(contender: Contender, shared: Sequence[str]) -> str:
    narrowed = contender.narrowed
    left_out = {*shared, *(f"{name}={option_text(value)}" for name, value in narrowed.items())}
    method, options = split_label(contender.label)
    texts = [f"{name}={value}" for name, value in options.items()]
    own = " ".join([method, *(text for text in texts if text not in left_out)])
    if not narrowed:
        return own
    words = ", ".join(f"{name} {value:,}" for name, value in narrowed.items())
    return f"{own}, {words}: a subnet's width"


def _settings(run: Run) -> dict[str, Any]:
    config = run.header.config
    plain = msgspec.to_builtins(config, enc_hook=encode_own)
    flat = {name: value for name, value in plain.items() if name in TELLING_APART}
    flat["threads"] = run.header.threads  # those in use, given or not
    return {**config.workload_options, **config.method_options, **flat, "lab": _lab_words(config.lab)}


def _lab_words(lab: Lab | None) -> str:
    """A description of the lab that differs from other labs, also by their slow-down."""
    if lab is None:
        return "none"
    return lab.summary if lab.dilation == 1 else f"{lab.summary}, {lab.dilation:g} times slower"


def _label(label: str, settings: Mapping[str, Any], differing: set[str]) -> str:
    """The label, with the settings that tell it from rows of the same label."""
    extra = [f"{name}={option_text(settings[name])}" for name in sorted(differing) if name in settings]
    return " ".join([label, *(text for text in extra if text not in label.split())])
