"""The summary of one run."""

from istbench.cluster.clock import ClusterTime, dollars
from istbench.report.phrases import (
    ROUGH,
    ROUGH_LINE,
    Caution,
    Lead,
    count_nodes,
    data_line,
    metric_line,
    replay_lines,
)
from istbench.report.tables.numbers import metric_value, number
from istbench.report.tables.stalls import SHARED_CORES, slow_node_words, stall_lines
from istbench.report.tables.table import Scalar, Table, items_table
from istbench.results.load import Run
from istbench.results.metrics import level_text
from istbench.results.slow_node import straggler

_MEGA = 1e6


def run_sentence(run: Run, replayed: Run | None = None) -> str:
    """The answer of one run: the seconds to the hardest target that it reached, measured and `replayed`."""
    header, metric, best = run.header, run.curve.metric, run.curve.best()
    name = f"{header.method_label} on {count_nodes(header.nodes)}"
    level = next((level for level in reversed(run.targets) if run.reached(level)), None)
    there = None if level is None else run.reached(level)
    if level is None or there is None:
        final = "never a number" if best is None else metric_value(best)
        missed = " and reached no target" if run.targets else ""
        return f"{name} trained for {header.budget}{missed}: the best {metric.name} is {final}."
    on_cluster = None if replayed is None else replayed.reached(level)
    also = ""
    if on_cluster is not None and replayed is not None and replayed.cluster is not None:
        also = f", {number(on_cluster.seconds)} s replayed on {replayed.cluster.profile.name}"
    return (
        f"{name} reached {metric.title} {level_text(level)} in {number(there.seconds)} s measured on "
        f"{header.host.name}{also}. One seed, so no spread is known."
    )


def run_summary(run: Run, replayed: Run | None = None) -> Table:
    """The result of one run, an item in each row.

    replayed: the same run on the clock of a cluster.
    """
    header, curve = run.header, run.curve
    metric = curve.metric
    rows: list[tuple[str, str, Scalar]] = [("status", header.status, header.status)]
    if header.error:
        rows.append(("error", header.error, header.error))
    if curve.evaluations:
        last = curve.evaluations[-1]
        rows += [
            (f"final {metric.title}", *_metric(curve.final())),
            (f"best {metric.title}", *_metric(curve.best())),
            _figure("train seconds", last.train_s),
            _figure("wall seconds", last.wall_s),
            ("local steps per node", str(last.step), last.step),
            ("samples", str(last.samples), last.samples),
            _figure("MB sent per node", last.bytes_sent_per_node / _MEGA),
            _figure("MB received per node", last.bytes_received_per_node / _MEGA),
        ]
        if run.shares:
            named = ", ".join(f"{share:g}" for share in run.shares)
            rows.append(("speeds of the nodes", named, named))
        rows += _by_node(run)
        memory = header.result.peak_memory_bytes_per_node if header.result else None
        if memory:
            rows.append(_figure("peak MB per node", memory / _MEGA))
        rows += [_to_target(run, level, "train") for level in run.targets]
    if replayed is not None:
        rows += _on_cluster(replayed)
    return items_table(
        rows,
        title=f"{header.workload_label} by {header.method_label}, {count_nodes(header.nodes)}, seed {header.seed}",
        footer=(
            data_line(header.data_source),
            Lead(f"Budget: {header.budget}. Cell: {header.cell}."),
            *stall_lines([run]),
            *_slow_node_line(run),
            *metric_line(metric, own=True),
            *_rough_line(run),
            *_replay_line(replayed),
        ),
        context={
            "cell": header.cell,
            "data": header.data,
            "data_seen": header.data_source.seen,
            "budget": header.budget,
        },
    )


def _figure(name: str, value: float) -> tuple[str, str, Scalar]:
    return name, number(value), value


def _by_node(run: Run) -> list[tuple[str, str, Scalar]]:
    nodes = run.header.result.node_seconds if run.header.result else ()
    if len(nodes) < 2:
        return []
    spans = {
        "computing seconds per node": [node.computing_s for node in nodes],
        "waiting seconds per node": [node.waiting_s for node in nodes],
    }
    return [(name, f"{number(min(spent))} to {number(max(spent))}", max(spent)) for name, spent in spans.items()]


def _slow_node_line(run: Run) -> list[str]:
    header = run.header
    nodes = header.result.node_seconds if header.result else ()
    found = straggler(nodes, run.shares)
    if found is None:
        return []
    slowest, fastest = found.slowest, found.fastest
    line = (
        f"Slowest node: rank {slowest.rank} ({slowest.host}) computed {number(slowest.computing_s)} s. Fastest: "
        f"rank {fastest.rank} ({fastest.host}), {number(fastest.computing_s)} s. The others waited about "
        f"{number(found.waited_s)} s for the slowest."
    )
    if words := slow_node_words(header, found):
        line += f" Rank {slowest.rank} {words}."
    shared = len({node.host for node in nodes}) < len(nodes) and header.config.device == "cpu"
    if shared and header.config.lab is None:
        line += f" {SHARED_CORES}"
    return [Caution(line)]


def _rough_line(run: Run) -> list[str]:
    reached = [run.reached(level) for level in run.targets]
    return [ROUGH_LINE] if any(there is not None and there.from_start for there in reached) else []


def _metric(value: float | None) -> tuple[str, Scalar]:
    return ("not a number", None) if value is None else (metric_value(value), value)


def _to_target(run: Run, level: float, clock: str) -> tuple[str, str, Scalar]:
    name, there = f"{clock} seconds to {run.curve.metric.name} {level_text(level)}", run.reached(level)
    if there is None:
        return name, "not reached", None
    rough = ROUGH if there.from_start else ""
    return name, f"{rough}{number(there.seconds)} (step {there.step:.0f})", there.seconds


def _on_cluster(replayed: Run) -> list[tuple[str, str, Scalar]]:
    assert replayed.cluster is not None
    time, profile = replayed.cluster, replayed.cluster.profile
    seconds = time.seconds[-1]
    cost = dollars(profile, time.nodes, seconds)
    return [
        (f"{profile.name} seconds", number(seconds) + _range(time, seconds), seconds),
        *(_to_target(replayed, level, profile.name) for level in replayed.targets),
        *([] if cost is None else [_figure(f"{profile.name} dollars", cost)]),
    ]


def _range(time: ClusterTime, seconds: float) -> str:
    """The range of replayed `seconds` in brackets after a space; empty if unknown."""
    if time.low is None or time.high is None:
        return ""
    return f" [{number(seconds * time.low)}–{number(seconds * time.high)}]"


def _replay_line(replayed: Run | None) -> list[str]:
    if replayed is None or replayed.cluster is None:
        return []
    time = replayed.cluster
    paid = " and dollars" if time.profile.priced else ""
    lines: list[str] = [Lead(f"Seconds{paid} on {time.profile.name}: replayed, not measured.")]
    lines += replay_lines([time], time.profile, replayed.header.config.device)
    if time.doubt:
        way_out = "On a quiet machine, run istbench retrace, or the cell with --again."
        lines.append(Caution(f"Careful: they may be far off, {time.doubt}. {way_out}"))
    return lines
