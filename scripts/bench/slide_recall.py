"""The share of the true top 100 outputs that hashing finds, against the share of outputs that it makes active.

The script trains a network with one hidden layer on synthetic points of the amazon670k workload, with all outputs.
Then it looks up hidden vectors of test points in tables over the output rows: both families, several K, rising L.
It writes recall.csv, recall.png and recall.svg to `--out`.

    python scripts/bench/slide_recall.py --labels 30000 --steps 250 --out results/slide
    python scripts/bench/slide_recall.py --labels 200 --points 300 --hidden 8 --steps 1 --out TARGET    # to try it
"""

import argparse
import csv
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from istbench.base.machine import cores
from istbench.methods.slide.active import active_sets, no_labels
from istbench.methods.slide.dwta import DWTA
from istbench.methods.slide.hashing import Tables
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.threads import Threads
from istbench.report.output.figure import write_figure
from istbench.report.palette import NODE_COLOURS
from istbench.workloads.amazon670k import Amazon670k, Amazon670kOptions
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.extreme_evaluation import TopLabels
from istbench.workloads.models.extreme import ExtremeNetwork

TOP = 100
ASKED = 512
TABLES = (1, 2, 4, 8, 16, 32, 64)
FUNCTIONS = {SimHash: (4, 6, 9, 12), DWTA: (1, 2, 3, 4)}
_LEAST = 1e-4  # the picture starts at this share of active outputs
STYLES = {"simhash": ("-", "o"), "dwta": ("--", "s")}


@dataclass(frozen=True)
class Point:
    """Results for K functions in each of L tables of a family, as means over samples.

    active: share of all outputs. recall: share of the top 100 outputs. recall_1: share of the largest output.
    """

    family: str
    K: int
    L: int
    active: float
    recall: float
    recall_1: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=50_000)
    parser.add_argument("--points", type=int, default=80_000)
    parser.add_argument("--features", type=int, default=30_000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, workload = trained(arguments)
    hidden, top, precision = asked(model, workload)
    weight = model.output.weight.detach().numpy()
    points = list(curve(weight, hidden, top))
    with (arguments.out / "recall.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(points[0])))
        writer.writeheader()
        writer.writerows({name: _short(value) for name, value in asdict(point).items()} for point in points)
    said = f"{arguments.labels:,} labels, h={arguments.hidden}, {arguments.steps} dense steps, P@1 {precision:.2f}"
    write_figure(lambda figure: draw(figure, points, said), arguments.out / "recall")
    print(said)
    print(
        "| family | K | L | active | of the top 100 | of the largest |\n| :--- | ---: | ---: | ---: | ---: | ---: |"
    )
    for point in points:
        print(
            f"| {point.family} | {point.K} | {point.L} | {point.active:.4f} | {point.recall:.3f} "
            f"| {point.recall_1:.3f} |"
        )


def trained(arguments: argparse.Namespace) -> tuple[ExtremeNetwork, Amazon670k]:
    """A network after some steps of Adam on made-up points, and its workload."""
    options = Amazon670kOptions(
        hidden=arguments.hidden, points=arguments.points, features=arguments.features, labels=arguments.labels
    )
    workload = Amazon670k(options)
    with tempfile.TemporaryDirectory() as cache:
        workload.open(workload.prepare(None, Path(cache), lambda what, done, total: None))
    model = workload.build_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(workload.initial_rows(model, name, None, 0))
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr, fused=True)
    batches = ShardedBatches(workload.train_size, 256, rank=0, world_size=1, seed=0)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        workload.loss(model, workload.train_batch(batches.indices(step), batches.generator(step))).backward()
        optimizer.step()
    return model, workload


@torch.no_grad()
def asked(model: ExtremeNetwork, workload: Amazon670k) -> tuple[np.ndarray, np.ndarray, float]:
    """Hidden vectors [512, h] of test points, the largest outputs of each [512, 100], and precision at 1."""
    points, labels = next(iter(workload.test_batches()))
    hidden, top = model.hidden(points), TopLabels(labels, TOP)
    for first, outputs in model.output.outputs(hidden):
        top.add(first, outputs)
    hidden, largest = hidden[:ASKED], top.labels[:ASKED]
    first_of = largest[:, 0].tolist()
    own = [labels.indices[labels.offsets[row] : labels.offsets[row + 1]].tolist() for row in range(len(hidden))]
    hits = [label in true for label, true in zip(first_of, own, strict=True)]
    return hidden.numpy(), largest.numpy(), sum(hits) / len(hits)


def curve(weight: np.ndarray, hidden: np.ndarray, top: np.ndarray) -> Iterator[Point]:
    """Recall for both families, several K and L."""
    threads = Threads(cores())
    nobody = no_labels(len(hidden))
    for kind, functions in FUNCTIONS.items():
        for count in functions:
            family = kind(weight.shape[1], count, TABLES[-1], 0)
            tables, codes = Tables.build(family, weight, threads), family.codes(hidden, threads)
            for some in TABLES:
                fewer = Tables(tables.rows[:some], tables.starts[:some])
                sets = active_sets(nobody, len(weight), threads, tables=fewer, codes=codes[:some])
                found = sets.have(top)
                active = float(sets.sizes.mean()) / len(weight)
                yield Point(kind.name, count, some, active, float(found.mean()), float(found[:, 0].mean()))


def draw(figure: Figure, points: list[Point], said: str) -> None:
    """Recall against active share, a line for each family and K."""
    figure.set_size_inches(7.2, 4.6)
    area = figure.add_subplot()
    for colour, (family, count) in zip(
        NODE_COLOURS, dict.fromkeys((point.family, point.K) for point in points), strict=False
    ):
        own = [point for point in points if (point.family, point.K) == (family, count)]
        line, marker = STYLES[family]
        area.plot(
            [100 * point.active for point in own], [100 * point.recall for point in own],
            line, marker=marker, color=colour, markersize=4, label=f"{family}, K={count}",
        )  # fmt: skip
    shares = np.geomspace(_LEAST, 1, 50)
    area.plot(100 * shares, 100 * shares, ":", color="0.4", label="at random")
    area.set_xscale("log")
    area.set_xlim(100 * _LEAST, 115)
    area.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    area.set_xlabel("outputs active (%)")
    area.set_ylabel(f"of the true top {TOP} found (%)")
    area.set_ylim(0, 101)
    area.grid(alpha=0.25)
    area.spines[["top", "right"]].set_visible(False)
    figure.suptitle("What hashing finds", fontsize="large", fontweight="bold")
    area.set_title(said, fontsize="small")
    figure.legend(loc="outside right center", frameon=False, title=f"L = {TABLES[0]} to {TABLES[-1]}")


def _short(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
