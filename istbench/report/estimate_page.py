"""The page of an estimate: its answer, its table and the seconds of a step against bandwidth."""

from collections.abc import Mapping, Sequence

from istbench.report.page import AtTarget, OnClock, Page, Study
from istbench.report.palette import method_styles
from istbench.report.plots.plot import BANDWIDTH_LABEL, Panel, Plot, Series
from istbench.report.tables.table import Table

_MEGA = 1e6


def estimate_page(
    answer: str,
    placed: str,
    table: Table,
    curves: Mapping[tuple[str, str], Sequence[tuple[float, float]]],
    problems: Sequence[str],
) -> Page:
    """The page.

    placed: the nodes, in words. curves: seconds of a step at rising bandwidths, bits/s, by method and label.
    """
    styles = method_styles(curves)
    series = []
    for (_, label), points in curves.items():
        x, y = tuple(bits / _MEGA for bits, _ in points), tuple(seconds for _, seconds in points)
        series.append(Series(label=label, style=styles[label], x=x, y=y, low=y, high=y))
    plot = Plot(
        stem="step-by-bandwidth",
        title="Seconds of a step",
        subtitle=table.title,
        kind="lines",
        x_label=f"{BANDWIDTH_LABEL}, Mbit/s",
        y_label="seconds of a step",
        panels=(Panel(title="estimated", series=tuple(series)),),
        x_scale="log",
        y_scale="log",
    )
    clock = OnClock(
        clock="estimated seconds",
        by_target=(AtTarget(target=None, answer=None, table=table),),
        notes=table.footer,
        others=(),
        curves=None,
        by_nodes=None,
        shares=None,
        rounds=(),
    )
    study = Study(
        name="Seconds of a step, estimated",
        styles=styles,
        clocks=(clock,),
        elsewhere=(),
        by_bandwidth=((placed, plot),),
        maps=(),
        crossings=(),
        cells=(),
    )
    return Page(title="An estimate from numbers", studies=(study,), problems=tuple(problems), estimate=answer)
