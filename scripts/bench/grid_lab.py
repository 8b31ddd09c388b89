"""Points of configs/light/grid.toml in a lab: measured seconds beside a replay of the same run (Linux, root).

    python scripts/bench/grid_lab.py results/grid --data input.txt
    python scripts/bench/grid_lab.py TARGET --points 1 --seconds 0.1 --nodes 2 --width 8    # to try it, as root

Six points of the grid: a method with its options, a bandwidth and a latency each. Each trains on shaped links for
about `--seconds`, and the trace of that run is replayed with its own computing. Writes lab.md, which
`scripts/bench/grid.py` puts into README.md of the same directory. The machine must be idle.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from istbench.api.progress import Display
from istbench.base.errors import RunFailed, UserError
from istbench.base.options.options import option_text
from istbench.base.options.run import RunRequest
from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import bandwidth_text
from istbench.launch.lab import network
from istbench.launch.processes.local import preload
from istbench.report.output.formats import table_markdown
from istbench.report.tables.numbers import rounded
from istbench.report.tables.table import ColumnOf, Entry, Table, table_of
from istbench.studies.validation.measure import Validation
from istbench.studies.validation.table import ReplayError, summary_of


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A point of the grid. bandwidth: as typed. latency: seconds, one way."""

    method: str
    bandwidth: str
    latency: float
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The method with its options."""
        return " ".join([self.method, *(f"{name}={option_text(value)}" for name, value in self.options.items())])


# Slow and fast links, short and long latencies.
SPOTS = (
    Spot(method="ddp", bandwidth="1gbit", latency=0.001),
    Spot(method="ddp", bandwidth="50mbit", latency=0.001, options={"accumulate": 16}),
    Spot(method="local_sgd", bandwidth="200mbit", latency=0.03, options={"local_steps": 16}),
    Spot(method="diloco", bandwidth="50mbit", latency=0.001, options={"local_steps": 16}),
    Spot(method="streaming_diloco", bandwidth="200mbit", latency=0.03, options={"local_steps": 16, "delay": 8}),
    Spot(method="ist", bandwidth="200mbit", latency=0.001, options={"local_steps": 16}),
)

Found = tuple[Spot, ReplayError]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--data", help="text of the workload; synthetic without it")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--width", type=int, default=64, help="of the network, as in the grid")
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure in a run, at least")
    parser.add_argument("--points", type=int, default=len(SPOTS), help="the first so many")
    arguments = parser.parse_args()
    found = []
    try:
        network.check()
        with Display() as display:
            for spot in SPOTS[: arguments.points]:
                request = RunRequest(
                    workload="text",
                    method=spot.method,
                    nodes=arguments.nodes,
                    workload_options={"width": arguments.width},
                    method_options=spot.options,
                    data=arguments.data,
                    threads=1,
                )
                preload([request])
                validation = Validation(
                    [request],
                    [spot.bandwidth],
                    repeats=1,
                    seconds=arguments.seconds,
                    latency_s=spot.latency,
                    display=display,
                )
                found += [(spot, error) for error in validation.of_the_network()]
    except (UserError, RunFailed) as error:
        parser.error(str(error))
    text = table_markdown(points_table(found))
    arguments.target.mkdir(parents=True, exist_ok=True)
    (arguments.target / "lab.md").write_text(text)
    print(text)


def points_table(found: Sequence[Found]) -> Table:
    """A row for each point."""

    def percent(one: Found) -> Entry:
        return Entry(text=f"{one[1].error:+.1%}", value=one[1].error)

    columns: list[ColumnOf[Found]] = [
        ColumnOf(key="method", title="method", align="left", entry=lambda one: one[0].label),
        ColumnOf(
            key="bandwidth", title="bandwidth", entry=lambda one: bandwidth_text(parse_bandwidth(one[0].bandwidth))
        ),
        ColumnOf(key="latency", title="latency", entry=lambda one: f"{one[0].latency * 1e3:g} ms"),
        ColumnOf(key="steps", title="local steps", entry=lambda one: one[1].steps),
        ColumnOf(key="measured_s", title="measured s", entry=lambda one: rounded(one[1].measured_s)),
        ColumnOf(key="replayed_s", title="replayed s", entry=lambda one: rounded(one[1].replayed_s)),
        ColumnOf(key="error", title="error", entry=percent),
    ]
    doubts = dict.fromkeys(error.doubt for _, error in found if error.doubt)
    slower = {error.dilation for _, error in found} - {1.0}
    footer = (
        f"Error of {len(found)} points: {summary_of([error.error for _, error in found])}.",
        "Each replay has the computing that its run recorded: the errors are those of the network's model.",
        *(
            f"More nodes than cores: computing and links ran {by:g} times slower, and so did the clock."
            for by in slower
        ),
        f"Trained on {', '.join(dict.fromkeys(error.data for _, error in found))}.",
        *(f"Careful: {doubt}." for doubt in doubts),
    )
    nodes = found[0][1].nodes if found else 0
    title = f"Points of the grid in a lab of {nodes} nodes, beside replays of the same runs"
    return table_of(columns, found, title=title, footer=footer, keys=3)


if __name__ == "__main__":
    main()
