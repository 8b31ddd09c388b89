"""Whether `istbench record` ends in time over public training scripts, as a markdown table.

`--examples DIR` is a checkout of pytorch/examples, `--nanogpt DIR` one of nanoGPT, `--more FOLDER` has further
scripts without arguments. Each script runs in a copy of its folder, on digits and words that this program draws,
since nothing is downloaded. Seconds count from the command to its end, with torch's import. Without these
options, a small script of this program is recorded.

    python scripts/bench/public_scripts.py --max-seconds 20 --steps 8    # to try it
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_SCRIPTS = {
    "regression/main.py": (),
    "mnist/main.py": (),
    "mnist_rnn/main.py": (),
    "mnist_forward_forward/main.py": ("--train_size", "512", "--test_size", "128"),
    "mnist_hogwild/main.py": (),
    "siamese_network/main.py": (),
    "vae/main.py": (),
    "dcgan/main.py": ("--dataset", "fake", "--ngf", "8", "--ndf", "8"),
    "imagenet/main.py": ("--dummy", "--batch-size", "4", "--workers", "2"),
    "word_language_model/main.py": ("--epochs", "1", "--use-optimizer"),
}
_NANOGPT = (
    "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=2", "--log_interval=10",
    "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--max_iters=200",
)  # fmt: skip
_SMALL = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Script:
    """A script with its arguments, by its path in a copy of its folder."""

    name: str
    path: Path
    arguments: tuple[str, ...] = ()


def digits(folder: Path) -> None:
    """Random digits in `folder`, in the files of MNIST."""
    raw, random = folder / "MNIST" / "raw", np.random.default_rng(0)
    raw.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 6000), ("t10k", 1000)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count, dtype=np.uint8)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels.tobytes())


def of_examples(checkout: Path, folder: Path) -> Iterator[Script]:
    """Scripts of pytorch/examples in copies below `folder`, with data."""
    digits(folder / "data")
    for name, arguments in _SCRIPTS.items():
        path = folder / name
        shutil.copytree(checkout / Path(name).parent, path.parent)
        if name.startswith("mnist_forward"):
            digits(path.parent / "data")
        if name.startswith("word"):
            for split in ("train", "valid", "test"):
                words = np.random.default_rng(0).integers(0, 1000, 40_000)
                (path.parent / "data" / "wikitext-2" / f"{split}.txt").write_text(" ".join(map(str, words)) + "\n")
        yield Script(name, path, arguments)


def of_nanogpt(checkout: Path, folder: Path) -> Iterator[Script]:
    """The training script of nanoGPT in a copy below `folder`, on random characters."""
    copy = folder / "nanoGPT"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    data = copy / "data" / "shakespeare_char"
    for split in ("train", "val"):
        np.random.default_rng(0).integers(0, 65, 100_000, dtype=np.uint16).tofile(data / f"{split}.bin")
    yield Script("nanoGPT/train.py", copy / "train.py", _NANOGPT)


def row(script: Script, arguments: argparse.Namespace, record: Path) -> str:
    """The line of `script` in the table."""
    words = [
        "record",
        "--steps",
        arguments.steps,
        "--max-seconds",
        arguments.max_seconds,
        "--out",
        record,
        "--json",
    ]
    command = [sys.executable, "-P", "-m", "istbench", *map(str, words), str(script.path), *script.arguments]
    started, limit = time.perf_counter(), 4 * arguments.max_seconds + 60
    process = subprocess.Popen(
        command, cwd=script.path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit)
        said = json.loads(out) if out else {}
        last = err.decode(errors="replace").strip().splitlines()[-1:] or [""]
        ended = f"recorded, {said['step_s'] * 1e3:.1f} ms a step" if said else last[0].removeprefix("istbench: ")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        ended = f"still running after {limit:g} s"
    return f"| {script.name} | {time.perf_counter() - started:.1f} | {process.wait()} | {ended} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--more", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max-seconds", type=int, default=60)
    parser.add_argument("--only", default="", help="scripts whose names begin with this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, scripts = Path(scratch), list[Script]()
        if arguments.examples:
            scripts += of_examples(arguments.examples, folder)
        if arguments.nanogpt:
            scripts += of_nanogpt(arguments.nanogpt, folder)
        if arguments.more:
            shutil.copytree(arguments.more, folder / "more")
            scripts += [Script(path.name, path) for path in sorted((folder / "more").glob("*.py"))]
        if not scripts:
            (folder / "small.py").write_text(_SMALL)
            scripts = [Script("small.py", folder / "small.py")]
        print("| script | seconds | status | end |\n| --- | ---: | ---: | --- |")
        for script in scripts:
            if script.name.startswith(arguments.only):
                print(row(script, arguments, folder / "script.record.json"), flush=True)


if __name__ == "__main__":
    main()
