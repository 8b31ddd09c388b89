"""Replayed gains of P3 beside the published ones (arXiv 1905.03960), on four nodes with a Quadro P4000 each.

    istbench compare configs/paper/p3.toml --out RESULTS      # or a part of it
    python scripts/paper/p3_gains.py RESULTS results/paper-p3
    python scripts/paper/p3_gains.py RESULTS TARGET           # to try it

Traces recorded here, their compute stretched to a P4000's, are replayed from 1 to 30 Gbit/s. Nothing is fitted to
the published gains. Writes README.md, gains.csv, slices.csv and two pictures.
"""

import argparse
import csv
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from p3_draw import draw_gains, draw_slices
from p3_readme import SHOWN, readme
from p3_replays import BASELINE, ESTIMATED, Gains, Setting, Sweep, read, replayed, swept

from istbench.report.output.figure import write_figure

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "headline_speedups.csv"
BANDWIDTHS = (1, 1.5, 2, 2.5, 3, 4, 6, 8, 10, 12, 15, 20, 30)  # Gbit/s
SWEPT = {"resnet50": (1, 2.5), "vgg19": (4, 8)}  # Gbit/s: with a large possible gain, and a smaller one
SETTINGS = (ESTIMATED, Setting(0.5, 20e-6), Setting(2.0, 20e-6), Setting(1.0, 0.0), Setting(1.0, 50e-6))
NAMES = {"sockeye": "translation"}


def main() -> None:
    """Write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    recorded = {name: one for name, one in read(arguments.results).items() if BASELINE in one.traces}
    published = read_published()
    settings = [(name, setting) for name in recorded for setting in SETTINGS]
    with_sweep = [name for name in SWEPT if name in recorded and len(recorded[name].sweep) > 2]
    with ProcessPoolExecutor() as pool:
        later = {
            key: pool.submit(replayed, key[0], recorded[key[0]], key[1], _bandwidths(key[1])) for key in settings
        }
        sweeping = {name: pool.submit(swept, name, recorded[name], SWEPT[name]) for name in with_sweep}
        gains = {key: found.result() for key, found in later.items()}
        sweeps = {name: found.result() for name, found in sweeping.items()}
    arguments.target.mkdir(parents=True, exist_ok=True)
    write_gains(gains, arguments.target / "gains.csv")
    write_sweeps(sweeps, arguments.target / "slices.csv")
    estimated = {name: gains[name, ESTIMATED] for name in recorded}
    write_figure(lambda figure: draw_gains(figure, estimated, published), arguments.target / "gains")
    if sweeps:
        write_figure(lambda figure: draw_slices(figure, sweeps), arguments.target / "slices")
    (arguments.target / "README.md").write_text(readme(recorded, gains, sweeps, published))


def _bandwidths(setting: Setting) -> tuple[float, ...]:
    return BANDWIDTHS if setting == ESTIMATED else SHOWN


def read_published() -> list[tuple[str, str, float | None, float]]:
    """Model, configuration, Gbit/s (if given) and gain of each published figure on 4 nodes."""
    found = []
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            if not row["paper"].startswith("P3") or "8 nodes" in row["condition"]:
                continue
            bandwidth = re.search(r"([\d.]+) Gbit/s", row["condition"])
            configuration = "slicing alone" if "slicing" in row["paper"] else "p3"
            gain = float(row["speedup"]) - 1
            model = NAMES.get(row["model"], row["model"])
            found.append((model, configuration, float(bandwidth[1]) if bandwidth else None, gain))
    return found


def write_gains(gains: dict[tuple[str, Setting], Gains], path: Path) -> None:
    """A row for each model, setting, configuration and bandwidth."""
    header = [
        "model",
        "gpu_speed",
        "overhead_us",
        "configuration",
        "gbit_s",
        "step_s",
        "compute_s",
        "gain_over_baseline",
    ]
    rows: list[list[Any]] = [
        [
            name,
            setting.speed,
            f"{setting.overhead_s * 1e6:g}",
            label,
            bandwidth,
            f"{step:.6g}",
            f"{found.compute:.6g}",
            f"{found.gain(label, bandwidth):.4f}",
        ]
        for (name, setting), found in gains.items()
        for label, steps in found.seconds.items()
        for bandwidth, step in steps.items()
    ]
    _write(path, header, rows)


def write_sweeps(sweeps: dict[str, Sweep], path: Path) -> None:
    """A row for each model, bandwidth and slice size."""
    rows: list[list[Any]] = [
        [name, bandwidth, size, f"{step:.6g}", f"{sweep.gain(bandwidth, size):.4f}"]
        for name, sweep in sweeps.items()
        for bandwidth, steps in sweep.seconds.items()
        for size, step in steps.items()
    ]
    _write(path, ["model", "gbit_s", "slice_params", "step_s", "gain"], rows)


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([header, *rows])


if __name__ == "__main__":
    main()
