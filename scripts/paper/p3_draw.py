"""The pictures of `p3_gains.py`."""

from typing import Any

from p3_replays import MODELS, P3, PRIORITY, SLICING, Gains, Sweep

from istbench.report.palette import method_styles

Published = list[tuple[str, str, float | None, float]]
_SHOWN = (P3, SLICING, PRIORITY)
_STYLES = method_styles({("p3", label) for label in _SHOWN})
_INK = "0.2"  # of what is published
_TICKS = (1, 2, 4, 8, 15, 30)
_DASHES = (0, (5, 4))


def draw_gains(figure: Any, gains: dict[str, Gains], published: Published) -> None:
    """A panel for each model: gain over the baseline against bandwidth, with the published points."""
    from matplotlib.lines import Line2D

    down = -(-len(gains) // 2)
    figure.set_size_inches(9.2, 1.5 + 3.1 * down)
    panels = figure.subplots(down, 2, sharey=True, squeeze=False)
    for panel, (name, found) in zip(panels.flatten(), gains.items(), strict=False):
        for label in (label for label in _SHOWN if label in found.seconds):
            style, bandwidths = _STYLES[label], list(found.seconds[label])
            panel.plot(
                bandwidths, [100 * found.gain(label, bandwidth) for bandwidth in bandwidths], color=style.colour,
                linestyle=style.line, marker=style.marker, markersize=5, linewidth=2, label=label,
            )  # fmt: skip
        _draw_published(panel, [row for row in published if row[0] == name])
        _dress(panel, MODELS[name].title)
        panel.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    for spare in panels.flatten()[len(gains) :]:
        spare.remove()
    low, high = panels[0, 0].get_ylim()
    panels[0, 0].set_ylim(low, high + 0.05 * (high - low))  # room for the highest point's label
    for panel in panels[-1]:
        panel.set_xlabel("bandwidth of a node's link, Gbit/s", fontsize="medium")
    for panel in panels[:, 0]:
        panel.set_ylabel("more samples a second\nthan the parameter server, %", fontsize="medium")
    star = Line2D([], [], color=_INK, marker="*", markersize=11, linestyle="none", label="published")
    handles = [*panels[0, 0].get_legend_handles_labels()[0], star]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("P3 on four nodes with a P4000: replayed and published gains", fontweight="bold")


def _draw_published(panel: Any, rows: Published) -> None:
    for _, configuration, bandwidth, gain in rows:
        text = f"{gain:.0%}" if configuration == P3 else f"{configuration}: {gain:.0%}"
        if bandwidth is None:
            panel.axhline(100 * gain, color=_INK, linewidth=1.2, linestyle=_DASHES, zorder=1)
            panel.annotate(
                f"published: {text}, bandwidth not given", (1.0, 100 * gain), xytext=(0, 4),
                textcoords="offset points", fontsize="small", color=_INK,
            )  # fmt: skip
        else:
            panel.plot([bandwidth], [100 * gain], marker="*", markersize=12, color=_INK, linestyle="none", zorder=5)
            panel.annotate(
                text, (bandwidth, 100 * gain), xytext=(4, 7), textcoords="offset points", fontsize="small",
                color=_INK, ha="right" if bandwidth == _TICKS[-1] else "center", va="bottom",
            )  # fmt: skip


def draw_slices(figure: Any, sweeps: dict[str, Sweep]) -> None:
    """A panel for each model: gain over the baseline against slice size, a line a bandwidth."""
    figure.set_size_inches(9.2, 4.0)
    panels = figure.subplots(1, len(sweeps), sharey=True, squeeze=False)[0]
    lines, markers, colour = ("-", "--"), ("v", "X"), _STYLES[P3].colour
    for panel, (name, sweep) in zip(panels, sweeps.items(), strict=True):
        for (bandwidth, steps), line, marker in zip(sweep.seconds.items(), lines, markers, strict=True):
            panel.plot(
                list(steps), [100 * sweep.gain(bandwidth, size) for size in steps], color=colour, linestyle=line,
                marker=marker, markersize=6, linewidth=2, label=f"{bandwidth:g} Gbit/s",
            )  # fmt: skip
        panel.axhline(0, color=_INK, linewidth=0.8, zorder=1)
        panel.legend(frameon=False, fontsize="small")
        _dress(panel, MODELS[name].title)
        sizes = list(next(iter(sweep.seconds.values())))
        panel.set_xticks(sizes, [f"{size // 1000:,}" for size in sizes], fontsize="small")
        panel.set_xlabel("largest slice, thousand parameters", fontsize="medium")
    panels[0].set_ylabel("more samples a second\nthan the parameter server, %", fontsize="medium")
    figure.suptitle("P3 by slice size, replayed on four nodes with a P4000", fontweight="bold")


def _dress(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize="medium")
    panel.set_xscale("log")
    panel.minorticks_off()
    panel.grid(alpha=0.2)
    panel.spines[["top", "right"]].set_visible(False)
