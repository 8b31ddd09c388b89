"""The number of training samples that an evaluation needs for BatchNorm statistics, as a markdown table.

Four nodes train the speech network on the synthetic corpus. After some epochs the script evaluates the assembled
model. Its statistics come from different numbers of samples, drawn at random or with every word in its proportion,
several times each. The table gives differences of mean accuracies. The first reference is the accuracy with all
training samples, which every draw estimates. The second is the accuracy with 2,048 random samples in batches of
256, the rule of earlier versions.

    python scripts/bench/batch_norm_samples.py --hidden 1024 --epochs 2,6,14
    python scripts/bench/batch_norm_samples.py --nodes 2 --hidden 16 --epochs 1 --draws 1 --clips 12    # to try it
"""

import argparse
import statistics
import time
from itertools import pairwise
from typing import Any

import torch

from istbench.base.cache import cache_directory
from istbench.base.machine import cores
from istbench.fabric import Fabric
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.evaluate import calibration_batches, evaluate, statistics_of
from istbench.studies.conformance.training import assembled, batches_of, set_up, train
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD

METHODS = ("ist", "ddp")
Draw = tuple[str, int, int]
"""The way of drawing, the number of samples, and the least number in a batch."""

BEFORE: Draw = ("random", 2048, 256)
RANDOM, BY_WORD = "256,512,1024,4096", "256,512,640,768,1024,2048"


def measure(
    fabric: Fabric, method: str, options: SpeechOptions, moments: list[int], draws: list[Draw], seeds: int
) -> Any:
    """By epoch: the accuracy with all samples; and for each of `draws` the accuracies and seconds of its seeds."""
    workload = Speech(options)
    workload.open(workload.prepare(None, cache_directory(), lambda *_: None))
    trained = set_up(fabric, workload, method, {})
    an_epoch = batches_of(fabric, workload, trained).steps_per_epoch
    found = {}
    for before, moment in pairwise([0, *moments]):
        train(fabric, workload, trained, before * an_epoch, moment * an_epoch)
        model = assembled(fabric, trained)
        if model is not None:
            torch.set_num_threads(cores())
            whole, _ = accuracy(workload, model, 0, "random", workload.train_size, 1024)
            found[moment] = [whole, drawn(workload, model, draws, seeds)]
            torch.set_num_threads(1)
        fabric.texts.broadcast()
    return found


def drawn(workload: Speech, model: torch.nn.Module, draws: list[Draw], seeds: int) -> list[Any]:
    """The (accuracy, seconds) of each seed, for each of `draws`, in turns."""
    found: list[Any] = [[] for _ in draws]
    for seed in range(seeds):
        for row, draw in zip(found, draws, strict=True):
            row.append(accuracy(workload, model, seed, *draw))
    return found


def accuracy(
    workload: Speech, model: torch.nn.Module, seed: int, drawn: str, samples: int, batch: int
) -> tuple[float, float]:
    """Per cent on the test split with statistics of `samples` training samples, and the seconds for it."""
    started = time.perf_counter()
    classes = workload.train_classes() if drawn == "by word" else None
    with statistics_of(model, workload, calibration_batches(workload, seed, samples, batch, classes)):
        metrics = evaluate(model, workload, torch.device("cpu"))
    return 100 * metrics["accuracy"], time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--epochs", default="2,6,14", help="epochs after which to evaluate")
    parser.add_argument("--random", default=RANDOM, help="numbers of random samples, beside 2,048")
    parser.add_argument("--by-word", default=BY_WORD, help="numbers of samples with every word in its proportion")
    parser.add_argument("--draws", type=int, default=6, help="of each")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of a word")
    arguments = parser.parse_args()
    options = SpeechOptions(hidden=arguments.hidden, clips_per_word=arguments.clips)
    moments = [int(epoch) for epoch in arguments.epochs.split(",")]
    draws: list[Draw] = [BEFORE]
    draws += [("random", int(samples), 256) for samples in arguments.random.split(",") if samples]
    draws += [("by word", int(samples), 512) for samples in arguments.by_word.split(",") if samples]
    models = []
    for method in arguments.methods.split(","):
        found = on_nodes(
            measure, arguments.nodes, method, options, moments, draws, arguments.draws, timeout_s=900.0
        )[0]
        models += [(f"{method}, {epoch}", *values) for epoch, values in found.items()]
    print("Accuracy with all samples: " + "; ".join(f"{name}: {whole:.2f}" for name, whole, _ in models) + ".\n")
    print("| drawn | samples, of a batch | " + " | ".join(name for name, *_ in models)
          + " | mean | largest | to 2,048 before: mean | largest | seconds, median [min-max] |")  # fmt: skip
    print("| --- " + "| ---: " * (len(models) + 6) + "|")
    for row, draw in enumerate(draws):
        print(_line(row, draw, models))


def _line(row: int, draw: Draw, models: list[Any]) -> str:
    """Row `row` of the table for `models`: (name, accuracy with all samples, the result of `drawn`)."""
    from_all, from_before, seconds = [], [], []
    for _, whole, rows in models:
        from_all.append([value - whole for value, _ in rows[row]])
        reference = statistics.mean(value for value, _ in rows[0])
        from_before += [value - reference for value, _ in rows[row]]
        seconds += [taken for _, taken in rows[row]]
    how, samples, batch = draw
    means = [statistics.mean(differences) for differences in from_all]
    figures = [*means, statistics.mean(means)]
    cells = [
        f"{how} | {samples}, {samples // max(1, samples // batch)}",
        *(f"{figure:+.2f}" for figure in figures),
        f"{max(abs(value) for differences in from_all for value in differences):.2f}",
        f"{statistics.mean(from_before):+.2f}",
        f"{max(map(abs, from_before)):.2f}",
        f"{statistics.median(seconds):.2f} [{min(seconds):.2f}-{max(seconds):.2f}]",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
