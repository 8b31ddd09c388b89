"""The lines below the main table of a group: data, clock, budget, and warnings."""

from collections.abc import Iterable, Sequence

from istbench.base.options.defaults import OF_GROUPS
from istbench.base.options.options import option_text
from istbench.cluster.profile import ClusterProfile, bandwidth_text, network_words
from istbench.report.baseline import baseline_rows, pair, typed_differences
from istbench.report.groups import Contender, RunGroup, split_label
from istbench.report.phrases import (
    ROUGH_LINE,
    Caution,
    Lead,
    count_nodes,
    data_line,
    doubt_lines,
    guide_line,
    interval_names,
    joined,
    replay_lines,
)
from istbench.report.tables.group_columns import target_lines
from istbench.report.tables.stalls import group_stall_lines, run_name, slow_node_lines
from istbench.report.targets import best_final
from istbench.results.load import Run
from istbench.results.metrics import value_text

_UNEQUAL_SHOWN = 6
_NAMED = 8
_ABOUT = 0.1  # bytes of a step that differ by less are about the same
_HELD_OUT = "by `istbench tune`, judged on samples held out of the training data"
_DEFAULTS = "each method has the workload's default settings, except for the options that the table names."


def comparison_footer(groups: Sequence[RunGroup], baseline: str) -> tuple[str, ...]:
    """The lines below a table of `groups`, one study on several clocks, and a link to the rules of such tables.

    A line that several groups have is there once.
    """
    first = groups[0]
    own = [list(_own_lines(group, baseline)) for group in groups]
    return tuple(
        dict.fromkeys(
            [
                data_line(first.source),
                Lead(f"Budget: {first.budget} for every row, {first.batch_words}."),
                *_clock_lines(groups),
                *(line for lines in own for line in lines),
                guide_line("tables.md#the-main-table"),
            ]
        )
    )


def _own_lines(group: RunGroup, baseline: str) -> Iterable[str]:
    yield from seeds_line(group)
    if group.clock == "cluster_s":
        yield from _cluster_lines(group)
    cores = group.host.cores if group.profile is None else None
    crowded = group.device == "cpu" and cores and max(group.nodes, default=0) > cores
    if crowded and group.host.lab:
        yield (
            "More nodes than cores: the lab slows down computing and links by the same factor and divides the "
            "seconds by it."
        )
    elif crowded:
        yield Caution(f"More nodes than cores: nodes took turns on {cores} cores. Separate machines would not.")
    yield _tuning_line(group, baseline)
    yield from target_lines(group)
    yield from _targets_line(group)
    if any(row.from_start(target.level) for row in group.contenders for target in group.targets):
        yield ROUGH_LINE
    if group.contenders:
        yield from _speed_up_lines(group, baseline)
    yield from _control_lines(group)
    yield from _control_line(group)
    yield from _versions_line(group)
    yield from _changes_line(group)
    yield from group_stall_lines(group)
    yield from slow_node_lines(group)
    yield from _unfinished_lines(group)


def _clock_lines(groups: Sequence[RunGroup]) -> Iterable[str]:
    for group in groups:
        if group.clock != "cluster_s":
            yield Lead(f"Clock: {group.clock_words} on {group.machine}.")
    if replayed := [group.machine for group in groups if group.clock == "cluster_s"]:
        yield Lead(f"Clock: recorded on {groups[0].device}, replayed on {joined(replayed)}.")


def _cluster_lines(group: RunGroup) -> Iterable[str]:
    if group.profile is not None:
        yield f"A node: {node_line(group.profile)}."
        yield from replay_lines(group.times, group.profile, group.device)
    if any(contender.extrapolated_from for contender in group.contenders):
        yield Caution(
            "Extrapolated rows were never run. Messages and operations of a step come from the method's plan on "
            "those nodes, and its seconds from the recorded step. Assumed: a target takes as many local steps as "
            "on the recorded nodes. With minibatches of their own, more nodes then train on more samples. Fewer "
            "steps may do; narrower subnets (ist) may need more."
        )
    if any(run.supposed_shares for run in group.runs):
        yield Caution(
            "Some rows with shares were never run: all computing of a node is scaled by its samples. Their curves "
            "are those of the recorded shares, which hold for methods that average gradients."
        )
    yield from doubted_lines(group)


def doubted_lines(group: RunGroup) -> Iterable[str]:
    """A warning if the replayed seconds of some runs of `group` may be far off."""
    yield from doubt_lines([(run_name(run), run.doubt) for run in group.runs if run.doubt], _total(group))


def node_line(profile: ClusterProfile) -> str:
    """A node of `profile`: its speed and its links."""
    out, into = (bandwidth_text(bits / profile.payload) for bits in (profile.bandwidth_out, profile.bandwidth_in))
    link = f"{out} out and in" if out == into else f"{out} out, {into} in"
    shared = "" if profile.full_duplex else " together"
    memory = "" if profile.memory_gb_per_s is None else f" {profile.memory_gb_per_s:g} GB/s of memory,"
    latency = f"{profile.latency_s * 1e6:g} µs to another {'node' if profile.host is None else 'host'}"
    figures = f"{profile.gflops:g} GFLOP/s effective,{memory} {link}{shared}, {latency}"
    return "; ".join([figures, *network_words(profile)])


def _tuning_line(group: RunGroup, baseline: str) -> str:
    """The trials by which `istbench tune` chose the options of the rows, if it chose any."""
    counts = [row.trials for row in group.competing]  # a control has the options of its row
    if not any(counts):
        return f"Tuning: none; {_DEFAULTS}"
    if not group.unequal_trials:
        return Lead(f"Tuned: {counts[0]} trials each, {_HELD_OUT}.")
    said = f"Tuned unequally, {_HELD_OUT}. Trials: {group.unequal_trials}."
    pairs = [(row, pair(group, baseline, row)) for row in group.competing]
    unequal = [row for row, found in pairs if found is not None and found.against.trials != row.trials]
    if not unequal:
        return Caution(f"{said} Each speed-up is over a row of as many trials.")
    names = joined(row.placed for row in unequal)
    return Caution(f"{said} The speed-ups of {names} also compare the tuning.")


def _targets_line(group: RunGroup) -> Iterable[str]:
    shares = [target.share for target in group.targets if target.share is not None]
    best = best_final(group.runs)
    if shares and best is not None:
        yield (
            f"Targets: {'multiples' if max(shares) > 1 else 'shares'} of the best final {group.metric.name} among "
            f"these runs, {value_text(best)}. More runs may change them; `run --target LEVEL` sets a "
            "level."
        )


def seeds_line(group: RunGroup) -> Iterable[str]:
    """A line for a footer: the meaning of ranges over seeds, or a warning if there are none."""
    most = max((contender.seeds for contender in group.contenders), default=0)
    if most == 1:
        yield Caution("Seeds: one in each row, so no spread is known.")
    if most < 2:
        return
    alone = [row.placed for row in group.contenders if row.seeds == 1]
    if alone:
        yield Caution(f"Seeds: one of {joined(alone, _NAMED)}, so no spread of it is known.")
    kinds = interval_names(row.seeds for row in group.contenders)
    yield Lead(f"Seeds: the median [{kinds}]. k/n: k of n seeds reached the target.")


def _speed_up_lines(group: RunGroup, baseline: str) -> Iterable[str]:
    rows = {nodes: baseline_rows(group, baseline, nodes) for nodes in group.nodes}
    lacking = [nodes for nodes, there in rows.items() if not there]
    competing = {row.nodes for row in group.competing}
    if len(lacking) == len(rows):
        yield Caution(
            f"Speed-up: none, {baseline} has no finished row; `istbench report --baseline` names another row."
        )
        return
    if missed := [nodes for nodes in lacking if nodes in competing]:
        counts = count_nodes(1) if missed == [1] else f"{joined(map(str, missed))} nodes"
        yield Caution(f"Speed-up: none on {counts}, {baseline} has no row there.")
    if any(len(there) > 1 for there in rows.values()):
        yield f"{baseline} has several rows. The speed-up names the row that it is over, of equal settings if any."
    yield from _unequal_line(group, baseline)


def _unequal_line(group: RunGroup, baseline: str) -> Iterable[str]:
    """The rows that differ from their row of the baseline in an option that the user chose."""
    pairs: dict[str, None] = {}
    for contender in group.contenders:
        found = pair(group, baseline, contender)
        names = typed_differences(contender, found.against) if found is not None else []
        if found is not None and contender.trials and contender.trials == found.against.trials:
            continue  # each has the settings that are best for it
        if found is not None and names:
            own, other = (_with(row, names) for row in (contender, found.against))
            pairs[f"{own} over {other}"] = None
    if pairs:
        shown = "; ".join(list(pairs)[:_UNEQUAL_SHOWN])
        more = f"; and {len(pairs) - _UNEQUAL_SHOWN} more" if len(pairs) > _UNEQUAL_SHOWN else ""
        way_out = "`--baseline 'METHOD NAME=VALUE'` names another row"
        yield Caution(f"Speed-ups between unequal settings: {shown}{more}. {way_out}.")


def _with(contender: Contender, names: Sequence[str]) -> str:
    """The row's name with the values of the settings `names`."""
    shown = split_label(contender.label)[1]
    missing = [f"{name}={option_text(contender.settings[name])}" for name in names if name not in shown]
    return " ".join([contender.name, *missing])


def _control_lines(group: RunGroup) -> Iterable[str]:
    narrow = [row.placed for row in group.contenders if row.narrowed]
    if narrow:
        yield Lead(
            f"Controls: {joined(narrow)}: the whole network is as wide as a subnet on as many nodes. It shows "
            "whether the wide network is worth its cost."
        )
    for row in group.contenders:
        local = next((other for other in group.contenders if _accumulates_like(row, other)), None)
        if local is not None:
            yield Lead(
                f"Controls: {row.placed} takes one optimizer step a round, for about the "
                f"bytes of {local.name}. It shows the gain of the local steps between."
            )
    few = [row.placed for row in group.contenders if group.is_on_few_nodes(row)]
    if few:
        yield Lead(f"Controls: {joined(few)}. It shows how much of the gain needs no exchange.")


def _accumulates_like(row: Contender, local: Contender) -> bool:
    """Whether `row` accumulates the minibatches of a round of `local`, and sends about as many bytes a step."""
    if row.nodes == 1 or row.nodes != local.nodes or row.narrowed or local.narrowed:
        return False
    if row.header.minibatches_a_step == 1 or row.header.minibatches_a_step != local.header.accumulation:
        return False
    ends = [own.runs[0].curve.evaluations[-1] for own in (row, local)]
    one, other = (end.bytes_sent_per_node / max(end.step, 1) for end in ends)
    return abs(one - other) <= _ABOUT * max(one, other)


def _without_group(label: str) -> str:
    """The label of a control, which has no groups of nodes."""
    return " ".join(word for word in label.split() if not word.startswith(f"{OF_GROUPS}="))


def _control_line(group: RunGroup) -> Iterable[str]:
    """The rows whose control is missing: the same method on few nodes, which shows what needs no other node."""
    headers = [row.header for row in group.contenders]
    there = {(_without_group(header.method_label), header.nodes) for header in headers}
    lacking = {
        f"{header.method} on {count_nodes(header.control_nodes)}": None
        for header in headers
        if header.control_nodes is not None
        and (_without_group(header.method_label), header.control_nodes) not in there
    }
    if lacking:
        yield Caution(
            f"Control: the row of {joined(list(lacking))} is missing. It shows how much of the gain needs no "
            "exchange; `istbench compare` runs it too."
        )


def _versions_line(group: RunGroup) -> Iterable[str]:
    runs = group.runs
    for name in ("istbench", "torch"):
        found = sorted({run.header.versions.get(name, "unknown") for run in runs})
        if len(found) > 1:
            yield Caution(f"Careful: these runs come from several versions of {name}: {', '.join(found)}.")


def _changes_line(group: RunGroup) -> Iterable[str]:
    changed = [run for run in group.runs if run.changes]
    if changed:
        yield Caution(
            f"Careful: {len(changed)} of {_total(group)} runs consist of different parts, for example "
            f"{run_name(changed[0])}, {'; '.join(changed[0].changes)}."
        )


def _unfinished_lines(group: RunGroup) -> Iterable[str]:
    counted = [run for contender in group.contenders for run in contender.diverged]
    if counted:
        yield Caution(
            f"Diverged: {len(counted)} of {_total(group)} runs: {joined(map(run_name, counted), _NAMED)}. Each "
            "counts as a miss, and its final value as the worst."
        )
    left = [run for run in group.unfinished if all(run is not one for one in counted)]
    if left:
        named = joined((f"{run_name(run)} ({_state(run)})" for run in left), _NAMED)
        yield Caution(f"Not counted: {len(left)} of {_total(group)} runs: {named}.")


def _state(run: Run) -> str:
    if run.diverged:
        return "diverged, with no other seed"
    return "unfinished" if run.header.status == "running" else run.header.status


def _total(group: RunGroup) -> int:
    return len(group.unfinished) + len(group.runs)
