"""The shares of each row's time: computing, communication and idling, or computing and waiting."""

from collections.abc import Iterable

from istbench.report.groups import Contender, RunGroup
from istbench.report.palette import ACTIVITY_COLOURS
from istbench.report.phrases import count_nodes
from istbench.report.plots.plot import Bar, Bars, plot_subtitle, plot_title

# A share below this many percent has no room for its number.
_NAMED_FROM = 8.0
_REPLAYED = ("compute", "communication", "idle")
_PARTS = {**ACTIVITY_COLOURS, "waiting": ACTIVITY_COLOURS["communication"]}


def time_shares(group: RunGroup) -> Bars | None:
    """The shares of each row as the median over seeds, in percent; None if no row knows them.

    On the clock of a cluster they are those of the replay, as the mean over nodes. Measured runs know only the
    seconds that their nodes computed and waited.
    """
    rows: dict[str, dict[str, float]] = {}
    for contender in group.contenders:
        found = _measured(contender) if group.profile is None else _replayed(contender)
        if found:
            rows[f"{contender.name}, {count_nodes(contender.nodes)}"] = found
    if not rows:
        return None
    parts = dict.fromkeys(part for shares in rows.values() for part in shares)
    return Bars(
        stem=f"{group.stem}-shares",
        title=f"Where the time goes: {plot_title(group)}",
        subtitle=plot_subtitle(group, "median over seeds, mean over nodes"),
        x_label=f"share of the {group.time_name} (%)",
        rows=tuple(rows),
        parts=tuple((part, _PARTS[part]) for part in parts),
        bars=tuple(bar for row, shares in rows.items() for bar in _stacked(row, shares)),
    )


def _stacked(row: str, shares: dict[str, float]) -> Iterable[Bar]:
    start = 0.0
    for part, percent in shares.items():
        text = f"{percent:.0f} %" if percent >= _NAMED_FROM else ""
        yield Bar(row=row, part=part, start=start, end=start + percent, text=text)
        start += percent


def _replayed(contender: Contender) -> dict[str, float]:
    return {name: 100 * contender.time_share(name) for name in _REPLAYED} if contender.times else {}


def _measured(contender: Contender) -> dict[str, float]:
    nodes = contender.node_seconds
    total = sum(node.computing_s + node.waiting_s for node in nodes)
    if not total:
        return {}
    computing = sum(node.computing_s for node in nodes) / total
    return {"compute": 100 * computing, "waiting": 100 * (1 - computing)}
