"""Seconds of a training step of `text`, beside an iteration of nanoGPT's own train.py, in turns.

Both train the same network on the same text by the same settings, by default nanoGPT's for a CPU. istbench trains
on one node by METHOD. Its seconds are the train clock divided by the steps. nanoGPT (github.com/karpathy/nanoGPT)
runs unedited, in a process of its own; --nanogpt names a checkout of it. Its seconds are the mean of those it
prints, without the first tenth. Without --nanogpt only istbench runs. Each run has all cores.

    python scripts/bench/nanogpt.py --steps 5 --turns 1 --width 16 --layers 1 --context 16    # to try it
"""

import argparse
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cells import run_cell

from istbench.workloads.text import TextOptions
from istbench.workloads.text_data.build import find_text, numbered

_PARTS = ("train.py", "model.py", "configurator.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of nanoGPT")
    parser.add_argument("--data", type=Path, metavar="FILE|DIR", help="a text; by default Python's help topics")
    parser.add_argument("--method", default="local_sgd")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=12)
    arguments = parser.parse_args()
    ours, theirs = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.nanogpt is not None:
            _copy(arguments.nanogpt, arguments.data, Path(folder))
        for turn in range(1, arguments.turns + 1):
            if arguments.nanogpt is not None:
                theirs.append(_nanogpt(Path(folder), arguments))
                print(f"turn {turn}: nanoGPT {1e3 * theirs[-1]:.2f} ms a step")
            ours.append(_istbench(arguments))
            print(f"turn {turn}: istbench {1e3 * ours[-1]:.2f} ms a step")
    print(f"istbench, {arguments.method}: {_summary(ours)}")
    if theirs:
        print(f"nanoGPT: {_summary(theirs)}")
        ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"istbench / nanoGPT, by turn: median {statistics.median(ratios):.2f}, {spread}")


def _summary(seconds: list[float]) -> str:
    each = [1e3 * value for value in seconds]
    return f"median {statistics.median(each):.2f} ms a step, {min(each):.2f} to {max(each):.2f}"


def _istbench(arguments: argparse.Namespace) -> float:
    """Seconds of a step of istbench."""
    sizes = [
        f"--workload-set={name}={getattr(arguments, name)}" for name in ("width", "layers", "heads", "context")
    ]
    data = [] if arguments.data is None else [f"--data={arguments.data}"]
    result = run_cell(
        "--workload=text", f"--method={arguments.method}", *sizes, *data, f"--batch-size={arguments.batch_size}",
        f"--steps={arguments.steps}", f"--eval-every={arguments.steps}", "--device=cpu",
    )  # fmt: skip
    return float(result["train_s"]) / arguments.steps


def _copy(checkout: Path, data: Path | None, folder: Path) -> None:
    """Copy nanoGPT's program to `folder`, and write the text there in its format."""
    for name in _PARTS:
        shutil.copy(checkout / name, folder / name)
    text = find_text(data)
    codes = text.read(decoded=True).codes(decoded=True)
    train, test, known = numbered(codes, "characters", text.place, TextOptions().test_percent)
    place = folder / "data" / "text"
    place.mkdir(parents=True)
    for name, symbols in (("train", train), ("val", test)):
        symbols.astype(np.uint16).tofile(place / f"{name}.bin")
    symbols_of_both = len(known) + bool((test == len(known)).any())  # with one for unknown characters
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": symbols_of_both}))


def _nanogpt(folder: Path, arguments: argparse.Namespace) -> float:
    """Seconds of an iteration of nanoGPT, from its own output."""
    settings = {
        "dataset": "text", "device": "cpu", "compile": False, "dtype": "float32",
        "eval_interval": 10**9, "eval_iters": 1, "log_interval": 1, "gradient_accumulation_steps": 1,
        "n_embd": arguments.width, "n_layer": arguments.layers, "n_head": arguments.heads,
        "block_size": arguments.context, "batch_size": arguments.batch_size, "dropout": 0.0,
        "max_iters": arguments.steps - 1, "lr_decay_iters": arguments.steps, "warmup_iters": arguments.steps // 20,
        "learning_rate": 1e-3, "min_lr": 1e-4, "beta2": 0.99,
    }  # fmt: skip
    command = [sys.executable, "train.py", *(f"--{name}={value}" for name, value in settings.items())]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    times = [
        float(found) / 1e3 for found in re.findall(r"^iter \d+: .* time ([\d.]+)ms", ended.stdout, re.MULTILINE)
    ]
    if len(times) != arguments.steps:
        raise SystemExit(f"nanoGPT ended after {len(times)} of {arguments.steps} iterations: {ended.stderr[-500:]}")
    return statistics.fmean(times[len(times) // 10 or 1 :])


if __name__ == "__main__":
    main()
