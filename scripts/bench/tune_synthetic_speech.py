"""The tuning of the synthetic speech corpus: test accuracy after every epoch, for settings of the corpus.

One process computes the steps of four data parallel nodes with minibatches of 128: plain SGD, learning rate 0.01.
The corpus is right if the accuracy levels off near 80 %, as on recorded words. The script prints two accuracies:
with BatchNorm's running statistics, and with statistics estimated again on training clips.

    python scripts/bench/tune_synthetic_speech.py --hidden 1024 --clips 400,600 --snr 5:30,10:35 --cache CACHE
    python scripts/bench/tune_synthetic_speech.py --hidden 16 --clips 20 --epochs 1 --cache CACHE    # to try it
"""

import argparse
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import nn

from istbench.machine import cores
from istbench.node.evaluate import calibrated
from istbench.workloads.base import Batch, DataSource
from istbench.workloads.initialise import initializers
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data.build import prepare_recorded, prepare_synthetic
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD, SHIFT_S, SNR_DB, CorpusSettings

NODES = 4
LEARNING_RATE = 0.01


def initial_model(workload: Speech, seed: int) -> nn.Module:
    """The workload's model with the initial weights of `seed`."""
    with torch.device("meta"):
        model = workload.build_model()
    values = {name: workload.initial_rows(model, name, None, seed) for name in initializers(model)}
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    model.load_state_dict(values, strict=False)
    return model


def train(workload: Speech, source: DataSource, epochs: int, seed: int) -> None:
    """Train and print the test accuracy after every epoch."""
    workload.open(source)
    model = initial_model(workload, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    global_batch = NODES * workload.batch_size
    started = time.perf_counter()
    for epoch in range(1, epochs + 1):
        order = torch.randperm(source.train, generator=generator)
        losses = []
        for first in range(0, len(order) - global_batch + 1, global_batch):
            batch = workload.train_batch(order[first : first + global_batch], generator)
            losses.append(step(workload, model, optimizer, batch))
        running = accuracy(workload, model)
        with calibrated(model, workload, seed, torch.device("cpu")):
            anew = accuracy(workload, model)
        loss = sum(losses) / len(losses)
        seconds = time.perf_counter() - started
        print(f"{epoch:5d} {running:8.4f} {anew:12.4f} {loss:8.3f} {seconds:6.0f}", flush=True)


def step(workload: Speech, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """One data parallel step: every node normalises by its own minibatch, and rank 0 keeps the statistics."""
    model.train()
    optimizer.zero_grad()
    loss = 0.0
    for rank, local in enumerate(zip(*(part.chunk(NODES) for part in batch), strict=True)):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = 0.1 if rank == 0 else 0.0
        share = workload.loss(model, local) / NODES
        torch.autograd.backward(share)
        loss += share.item()
    optimizer.step()
    return loss


def accuracy(workload: Speech, model: nn.Module) -> float:
    """Test accuracy of `model`."""
    return workload.evaluate(model.eval(), workload.test_batches())["accuracy"]


def ranges(text: str) -> list[tuple[float, float]]:
    """The ranges written as "5:30,10:35"."""
    return [(float(low), float(high)) for low, high in (part.split(":") for part in text.split(","))]


def arguments() -> argparse.Namespace:
    """The settings to try, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="1024", help="widths, comma-separated")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--clips", default=str(CLIPS_PER_WORD), help="clips a word, comma-separated")
    parser.add_argument("--snr", default=f"{SNR_DB[0]:g}:{SNR_DB[1]:g}", help="ranges in dB, comma-separated")
    parser.add_argument("--epochs", type=int, default=int(Speech.epochs))
    parser.add_argument("--shift", type=float, default=SHIFT_S, help="largest shift of a word, seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="recorded words instead of synthetic ones")
    parser.add_argument("--cache", type=Path, required=True, help="directory for the prepared features")
    parser.add_argument("--threads", type=int, default=cores())
    return parser.parse_args()


def main() -> None:
    """Try every combination of the given settings."""
    given = arguments()
    torch.set_num_threads(given.threads)
    for clips, snr in product(map(int, given.clips.split(",")), ranges(given.snr)):
        if given.data:
            source = prepare_recorded(given.data, given.cache, lambda *_: None)
        else:
            settings = replace(CorpusSettings(), clips_per_word=clips, snr_db=snr, shift_s=given.shift)
            source = prepare_synthetic(settings, given.cache, lambda *_: None)
        for hidden in map(int, given.hidden.split(",")):
            print(f"{source.kind} {source.train} + {source.test} clips, {clips} a word, SNR {snr}, h={hidden}")
            print("epoch  running re-estimated     loss      s")
            workload = Speech(SpeechOptions(layers=given.layers, hidden=hidden))
            train(workload, source, given.epochs, given.seed)


if __name__ == "__main__":
    main()
