"""Stands for `torch.distributed.run` on hosts: one cell, whose checkpoint is ten steps further each time.

The seed tells what it does: 1 goes on until it is ended, 2 fails by a mistake of the user's, 3 dies on rank 1.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from published_steps import publish_step, step_whole, write_step


def option(name):
    return next(word.partition("=")[2] for word in sys.argv if word.startswith(f"--{name}="))


folder = Path(os.environ["ISTBENCH_RUN_FOLDER"])
rank, seed = option("node-rank"), option("seed")
run = Path(option("out"), "runs", "cell")


def write(path, text):
    """Write a file whole, as istbench does: it is read meanwhile."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_text(text)
    partial.replace(path)


def fail(message, status):
    if rank == "0":
        (folder / "failed").write_text(json.dumps({"message": message, "status": status}))
    sys.exit(1)


signal.signal(signal.SIGTERM, lambda *_: fail("interrupted", 130))
os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
if rank == "0":
    write(folder / "cell", "cell")
    while not (folder / "train").exists():
        time.sleep(0.01)
    if seed == "2":
        fail("no such thing; use another", 2)
    step = step_whole(run / "checkpoint")
    write_step(run / "checkpoint", step + 10, {"rank-0.json": b"{}"})
    write(run / "run.json", "{}")
    publish_step(run / "checkpoint", step + 10)
    with (folder / "said").open("a") as said:
        said.write(f"at step {step + 10}\n")
elif seed == "3":
    print("RuntimeError: out of luck", file=sys.stderr)
    sys.exit(1)
time.sleep(1000)
