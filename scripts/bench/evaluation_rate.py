"""Seconds of an evaluation of the speech network beside its bare matrix products, as a markdown table.

"Evaluation" is all that rank 0 does after it has the model: it reads the samples, estimates BatchNorm's statistics
and computes the metrics. "Products" are the matrix products of the same samples alone, into memory that is there.
Both take turns in one process, on all cores.

    python scripts/bench/evaluation_rate.py --hidden 1024,4096 --turns 7
    python scripts/bench/evaluation_rate.py --hidden 16 --clips 12 --turns 1    # to try it
"""

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from spread import spread
from torch import nn

from istbench.base.cache import cache_directory
from istbench.base.machine import cores
from istbench.node.evaluate import calibrated, evaluate
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="1024,4096")
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of each word")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(cores())
    print("| hidden units | evaluation, s | products, s | products / evaluation |")
    print("| ---: | ---: | ---: | ---: |")
    for hidden in map(int, arguments.hidden.split(",")):
        workload = Speech(SpeechOptions(hidden=hidden, clips_per_word=arguments.clips))
        workload.open(workload.prepare(None, cache_directory(), lambda *_: None))
        whole, bare = list[float](), list[float]()
        for way, seconds in turns(workload, arguments.turns):
            (whole if way == "whole" else bare).append(seconds)
        ratios = [products / evaluation for products, evaluation in zip(bare, whole, strict=True)]
        print(f"| {hidden} | {spread(whole, 3)} | {spread(bare, 3)} | {spread(ratios, 2)} |", flush=True)


def turns(workload: Speech, count: int) -> Iterator[tuple[str, float]]:
    """Seconds of each way, in turns, after a warm-up."""
    model = workload.build_model()
    batches: list[int] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: batches.append(len(inputs[0])))
    _evaluated(workload, model)
    hook.remove()
    products = products_of(model, batches)
    products()
    for _ in range(count):
        yield "whole", seconds_of(lambda: _evaluated(workload, model))
        yield "bare", seconds_of(products)


def _evaluated(workload: Speech, model: nn.Module) -> None:
    with calibrated(model, workload, 0, CPU):
        evaluate(model, workload, CPU)


def products_of(model: nn.Module, batches: list[int]) -> Callable[[], None]:
    """The products of the linear layers of `model` for batches of these sizes."""
    weights = [layer.weight.detach() for layer in model.modules() if isinstance(layer, nn.Linear)]
    made = [
        (torch.randn(size, weight.shape[1]), weight, torch.empty(size, weight.shape[0]))
        for size in batches
        for weight in weights
    ]

    def products() -> None:
        for inputs, weight, outputs in made:
            torch.mm(inputs, weight.t(), out=outputs)

    return products


def seconds_of(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
