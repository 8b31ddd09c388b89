"""A recorded script beside the script itself, and its replay for `ddp` beside a lab of two nodes (Linux, root).

The first table has the median seconds of a step: by the script's own clock, and recorded by `istbench record`, in
turns, on one thread. The second has those of the same model under torch's DistributedDataParallel on shaped links,
in plain steps as the script takes them, and of the replay of the record. The replay scales by the speeds that both
measured: two nodes at once have less memory bandwidth each than one alone.

`--nanogpt DIR` is a checkout of nanoGPT, `--text FILE` the text for its characters. They train in a copy, with the
settings of its README for a CPU. Without them, a small network of this program trains.

    python scripts/bench/recorded_script.py --turns 1 --steps 8 --bandwidth 1gbit    # to try it, as root
"""

import argparse
import contextlib
import dataclasses
import importlib
import io
import pickle
import re
import runpy
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from spread import spread
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from istbench.base.machine import cores
from istbench.base.units import parse_bandwidth
from istbench.cli import main as istbench
from istbench.cluster.script_record import ScriptRecord, load_script
from istbench.cluster.speed import Speed
from istbench.fabric import Fabric
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.message_costs import measure_message_costs
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.machine_speed import MemoryArrays
from istbench.node.trace_sample import measured, speeds_of
from istbench.plan.script_time import ChosenMethod, script_time
from istbench.plan.script_trace import script_trace
from istbench.studies.validation.measure import lab_profile

_NODES = 2
_FAST = 3e9  # bits/s of links on which the costs of messages are measured
_WARM = 5  # steps that no median counts
_MEASUREMENTS = 3

Parts = tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]
"""A model, its optimizer, and a function that computes the loss of the next batch by the model it is given."""

_SMALL_MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

def loss_of(model):
    return F.cross_entropy(model(torch.randn(64, 256)), torch.randint(10, (64,)))
"""
_SMALL_TRAIN = """
import sys, time
from small_model import build, loss_of
model, optimizer = build()
for step in range(int(sys.argv[1])):
    began = time.time()
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    print(f"iter {step}: time {1e3 * (time.time() - began):.3f}ms")
"""
_NANOGPT = [
    "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1",
    "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--lr_decay_iters=2000",
    "--dropout=0.0",
]  # fmt: skip


def small_parts() -> Parts:
    own: Any = importlib.import_module("small_model")
    model, optimizer = own.build()
    return model, optimizer, own.loss_of


def nanogpt_parts() -> Parts:
    """nanoGPT's network and optimizer, with batches as its train.py takes them."""
    own: Any = importlib.import_module("model")
    data = np.memmap("data/shakespeare_char/train.bin", dtype=np.uint16, mode="r")
    characters = int(Path("characters").read_text())
    config = own.GPTConfig(
        block_size=64, vocab_size=characters, n_layer=4, n_head=4, n_embd=128, dropout=0.0, bias=False
    )
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        model = own.GPT(config)
        optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")

    def loss_of(replica: nn.Module) -> Tensor:
        starts = torch.randint(len(data) - 64, (12,))
        inputs = torch.stack([torch.from_numpy(data[i : i + 64].astype(np.int64)) for i in starts])
        targets = torch.stack([torch.from_numpy(data[i + 1 : i + 65].astype(np.int64)) for i in starts])
        return replica(inputs, targets)[1]

    return model, optimizer, loss_of


def node_steps(fabric: Fabric, folder: str, nanogpt: bool, steps: int, shapes: list[list[int]]) -> dict[str, Any]:
    """Seconds of each step under DistributedDataParallel on this node, and the speeds that it measured beside."""
    with _inside(Path(folder)):
        model, optimizer, loss_of = nanogpt_parts() if nanogpt else small_parts()
        replica = DistributedDataParallel(model)
        speeds, seconds, arrays = [], [], MemoryArrays(fabric.device)

        def measure() -> None:
            for _ in range(_MEASUREMENTS):
                fabric.barrier("measuring")
                speeds.append(measured([(a, b, c) for a, b, c in shapes], fabric.device, arrays))

        measure()
        fabric.barrier("training")
        before = time.perf_counter()
        for _ in range(steps):
            loss = loss_of(replica)
            loss.backward()
            if nanogpt:
                torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
        measure()
    return {"seconds": seconds, "speeds": speeds}


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in `folder`, whose modules can be imported."""
    path = sys.path[:]
    sys.path.insert(0, str(folder))
    with contextlib.chdir(folder):
        yield
    sys.path[:] = path


def prepare(folder: Path, nanogpt: Path | None, text: Path | None) -> None:
    """Fill `folder` with the script and its data."""
    if nanogpt is None:
        (folder / "small_model.py").write_text(_SMALL_MODEL)
        (folder / "train.py").write_text(_SMALL_TRAIN)
        return
    if text is None:
        raise SystemExit("--nanogpt needs --text FILE, for example Tiny Shakespeare")
    shutil.copytree(nanogpt, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
    written = text.read_text()
    numbers = {character: number for number, character in enumerate(sorted(set(written)))}
    values = np.array([numbers[character] for character in written], dtype=np.uint16)
    place, cut = folder / "data/shakespeare_char", int(0.9 * len(values))
    values[:cut].tofile(place / "train.bin")
    values[cut:].tofile(place / "val.bin")
    (folder / "characters").write_text(str(len(numbers)))
    with (place / "meta.pkl").open("wb") as file:  # train.py reads the size of its vocabulary there
        pickle.dump({"vocab_size": len(numbers)}, file)


def own_seconds(words: list[str]) -> float:
    """The median of the seconds that the script prints for its steps."""
    printed = io.StringIO()
    before = sys.argv
    sys.argv = ["train.py", *words]
    with contextlib.redirect_stdout(printed):
        runpy.run_path("train.py", run_name="__main__")
    sys.argv = before
    times = [float(found) / 1e3 for found in re.findall(r"^iter \d+: .*time ([0-9.]+)ms", printed.getvalue(), re.M)]
    return statistics.median(times[_WARM:])


def recorded(words: list[str], steps: int) -> ScriptRecord:
    """The record of the script."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            istbench(
                ["record", "--steps", str(steps), "--threads", "1", "--out", "script.json", "train.py", *words]
            )
        except SystemExit as ended:
            if ended.code:
                raise SystemExit(said.getvalue()) from None
    return load_script(Path("script.json"))


def in_the_lab(
    record: ScriptRecord, folder: Path, nanogpt: bool, bandwidth: str, steps: int
) -> tuple[float, float]:
    """Seconds of a step on links of `bandwidth`: measured and replayed."""
    place = ShapedNetwork(nodes=_NODES, bandwidth=parse_bandwidth(bandwidth))
    figures = record.machine.gflops
    assert isinstance(figures, dict)
    shapes = [[int(size) for size in name.split("x")] for name in figures]
    launcher = LocalLauncher(place=place)
    by_node = on_nodes(node_steps, _NODES, str(folder), nanogpt, steps + _WARM, shapes, launcher=launcher)
    # The nodes wait for each other in every step.
    slowest = [max(turn) for turn in zip(*(own["seconds"] for own in by_node), strict=True)][_WARM:]
    costs = measure_message_costs(_NODES, dataclasses.replace(place, bandwidth=_FAST), place.lab.dilation)
    trace = script_trace(record, ChosenMethod(name="ddp", options={}), _NODES)
    there = speeds_of([(a, b, c) for a, b, c in shapes], [speeds for own in by_node for speeds in own["speeds"]])
    speed = _all_together(there)
    profile = dataclasses.replace(
        lab_profile(place.lab, costs.of(trace), max(1, cores() // _NODES)),
        gflops=speed.gflops,
        memory_gb_per_s=speed.memory_gb_per_s,
    )
    time_there = script_time(record, ChosenMethod(name="ddp", options={}), trace, profile)
    return statistics.median(slowest) / place.lab.dilation, time_there.step_s


def _all_together(there: dict[str, Any]) -> Speed:
    moments: tuple[Speed, ...] = there["moments"]
    return Speed(
        gflops=statistics.median(moment.gflops for moment in moments),
        memory_gb_per_s=statistics.median(moment.memory_gb_per_s for moment in moments),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--text", type=Path, help="the text for its characters")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="of a script and of a lab")
    parser.add_argument("--bandwidth", default="100mbit,1gbit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as a node of the lab
    steps, with_nanogpt = arguments.steps, arguments.nanogpt is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, arguments.nanogpt and arguments.nanogpt.resolve(), arguments.text)
        words = [*_NANOGPT, f"--max_iters={steps + _WARM}"] if with_nanogpt else [str(steps + _WARM)]
        endless = [*_NANOGPT, "--max_iters=1000000"] if with_nanogpt else ["1000000"]
        own, records = [], []
        with _inside(folder):
            for _ in range(arguments.turns):
                own.append(own_seconds(words))
                records.append(recorded(endless, max(8, steps)))
        of_records = [record.step_s for record in records]
        ratio = statistics.median(mine / theirs for mine, theirs in zip(of_records, own, strict=True))
        print("| turns | the script's own ms | recorded ms | recorded / own |")
        print("| ---: | ---: | ---: | ---: |")
        print(f"| {len(own)} | {_spread(own)} | {_spread(of_records)} | {ratio:.3f} |\n", flush=True)
        record = sorted(records, key=lambda record: record.step_s)[len(records) // 2]
        print("| links | ddp in the lab, ms | replayed ms | replayed / measured |")
        print("| --- | ---: | ---: | ---: |")
        for bandwidth in arguments.bandwidth.split(","):
            there, replayed = in_the_lab(record, folder, with_nanogpt, bandwidth, steps)
            print(
                f"| {bandwidth} | {1e3 * there:.2f} | {1e3 * replayed:.2f} | {replayed / there:.3f} |", flush=True
            )


def _spread(seconds: list[float]) -> str:
    return spread([1e3 * value for value in seconds], 2)


if __name__ == "__main__":
    main()
