"""The files of a validation, for each workload and number of nodes and a summary, and the picture of the errors."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import printable
from istbench.base.files import write_errors, writing_whole
from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import bandwidth_text, typed_bandwidth
from istbench.cluster.replay_checks import UNFINISHED, measurement_files, read_measurements
from istbench.report.output.figure import write_figure
from istbench.report.output.formats import table_markdown
from istbench.report.palette import method_styles
from istbench.report.tables.table import Table
from istbench.studies.validation.table import ReplayError, error_table, summary_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TITLE, SCALED_TITLE = "Replayed against measured", "Replayed for another computing speed, against measured"
SUMMARY = "summary.md"
SCALED = "-scaling"


@dataclass(frozen=True)
class ValidationFiles:
    """The files in directory `folder`, of networks of one kind.

    A file has the newest measurements of each method: those of methods that are not measured again stay.

    Attributes:
        host_nodes: nodes of a host. inside: bandwidth of a node inside it, bits/s, if it was named.
        racks: number of racks. uplink: bandwidth of a rack's link to the others, bits/s; None without racks.
        latency_s: of a link, one way, seconds.
    """

    folder: Path
    _: KW_ONLY
    scaling: bool
    host_nodes: int = 1
    inside: float | None = None
    racks: int = 1
    uplink: float | None = None
    latency_s: float = 0.0

    def check(self, settings: Iterable[tuple[str, int]]) -> None:
        """Read the files of the workloads and numbers of nodes that will be measured.

        Raises:
            UserError: if one is not readable, before hours of measuring.
        """
        for workload, nodes in settings:
            self._before(self._stem(workload, nodes))

    def write(self, errors: Sequence[ReplayError], *, finished: bool) -> list[Path]:
        """Write the files with `errors`, and the summary; returns their stems, without an ending.

        Raises:
            UserError: if they cannot be written.
        """
        stems: dict[Path, list[ReplayError]] = {}
        for error in errors:
            stem = self._stem(error.workload, error.nodes)
            stems.setdefault(stem if finished else stem.with_name(f"{stem.name}{UNFINISHED}"), []).append(error)
        with write_errors(self.folder):
            for stem, own in stems.items():
                measured = {error.method for error in own}
                before = self._before(stem) if finished else []
                self._write(stem, [*(old for old in before if old.method not in measured), *own])
            if finished and not self.scaling:
                self.write_summary()
        return list(stems)

    def write_summary(self) -> None:
        """Write the table of all measurements in the folder, by method."""
        found = [error for path in measurement_files(self.folder) for error in read_measurements(path)]
        if any(not error.environment for error in found):
            _write_text(self.folder / SUMMARY, table_markdown(summary_table(found, f"{TITLE}, by method")))

    def _stem(self, workload: str, nodes: int) -> Path:
        kind = ""
        if self.host_nodes > 1:
            kind += f"-hosts{self.host_nodes}"
        if self.inside is not None:
            kind += f"-inside{typed_bandwidth(self.inside)}"
        if self.uplink is not None:
            kind += f"-racks{self.racks}-uplink{typed_bandwidth(self.uplink)}"
        if self.latency_s:
            kind += f"-latency{self.latency_s * 1e3:g}ms"
        return self.folder / f"{workload}-n{nodes}{kind}{SCALED if self.scaling else ''}"

    def _before(self, stem: Path) -> list[ReplayError]:
        path = stem.with_name(f"{stem.name}.json")
        return read_errors(path) if path.exists() else []

    def _write(self, stem: Path, errors: Sequence[ReplayError]) -> None:
        title = f"{self.title(errors)}{', unfinished' if stem.name.endswith(UNFINISHED) else ''}"
        figures = json.dumps([error.to_json() for error in errors], indent=1)
        _write_text(stem.with_name(f"{stem.name}.json"), f"{figures}\n")
        _write_text(stem.with_name(f"{stem.name}.md"), table_markdown(self.table(errors, title)))
        draw_errors(errors, title, stem)

    def title(self, errors: Sequence[ReplayError]) -> str:
        """The title of a table of `errors`."""
        workloads = ", ".join(dict.fromkeys(error.workload for error in errors))
        counts = sorted({error.nodes for error in errors})
        nodes = "1 node" if counts == [1] else f"{' and '.join(map(str, counts))} nodes"
        if self.host_nodes > 1:
            inside = f" with {bandwidth_text(self.inside)} inside" if self.inside is not None else ""
            nodes += f" on hosts of {self.host_nodes}{inside}"
        if self.uplink is not None:
            nodes += f" in {self.racks} racks, uplinks of {bandwidth_text(self.uplink)}"
        if self.latency_s:
            nodes += f", latency of {self.latency_s * 1e3:g} ms"
        return f"{SCALED_TITLE if self.scaling else TITLE}: {workloads}, {nodes}"

    def table(self, errors: Sequence[ReplayError], title: str) -> Table:
        """The table of `errors`."""
        return error_table(errors, title, scaling=self.scaling)


def _write_text(path: Path, text: str) -> None:
    with writing_whole(path) as file:
        file.write(text.encode())


def read_errors(path: Path) -> list[ReplayError]:
    """The measurements in `path`, with all their fields.

    Raises:
        UserError: if it does not hold measurements.
    """
    read_measurements(path)
    content = read_bytes(path, "the measurements of `istbench lab validate`", path.stat().st_size + 1)
    return decode_json(content, list[ReplayError], str(path), "delete it, or run `istbench lab validate` again")


_INCHES = (6.4, 4.2)
_WANTED, _LEAST_RANGE = 10.0, 14.0
_DODGE = 0.16


def draw_errors(errors: Sequence[ReplayError], title: str, stem: Path) -> list[Path]:
    """Error in percent by bandwidth, a point a repeat, as `stem`.png and `stem`.svg; returns both paths.

    Raises:
        OSError: if they cannot be written.
    """
    return write_figure(lambda figure: _fill(figure, errors, title), stem)


def _fill(figure: "Figure", errors: Sequence[ReplayError], title: str) -> None:
    figure.set_size_inches(*_INCHES)
    area = figure.add_subplot()
    area.axhspan(-_WANTED, _WANTED, color="0.94", zorder=0)
    area.axhline(0, color="0.5", linewidth=0.9, zorder=1)
    bandwidths = sorted({error.bandwidth for error in errors}, key=parse_bandwidth)
    styles = method_styles({(error.method, error.method) for error in errors})
    for order, (method, style) in enumerate(styles.items()):
        own = [error for error in errors if error.method == method]
        shift = _DODGE * (order - (len(styles) - 1) / 2)
        places = [bandwidths.index(error.bandwidth) + shift for error in own]
        percent = [100 * error.error for error in own]
        area.scatter(
            places, percent, color=style.colour, marker=style.marker, s=42, alpha=0.85, label=printable(method)
        )
    reach = max(_LEAST_RANGE, 1.15 * max(abs(100 * error.error) for error in errors))
    area.set_ylim(-reach, reach)
    area.set_xlim(-0.5, len(bandwidths) - 0.5)
    area.set_xticks(range(len(bandwidths)), bandwidths)
    area.set_xlabel("bandwidth of a link")
    area.set_ylabel("replayed over measured, less one (%)")
    area.grid(axis="y", alpha=0.25)
    area.spines[["top", "right"]].set_visible(False)
    figure.suptitle(printable(title), fontsize="large", fontweight="bold")
    area.set_title(printable("; ".join(sorted({error.data for error in errors}))), fontsize="small")
    figure.legend(
        loc="outside lower center", ncols=4, frameon=False, title="a point a repeat; grey: within 10 %",
        title_fontsize="small",
    )  # fmt: skip
