"""Run a function on n real processes that communicate over gloo, for checks and tests."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from istbench.base.error_lines import TRACEBACK
from istbench.base.scratch import scratch_folder
from istbench.fabric import connect
from istbench.launch.processes.launcher import Job, Launcher, launch
from istbench.launch.processes.local import LocalLauncher


def on_nodes(
    function: Callable[..., Any],
    nodes: int,
    *args: Any,
    timeout_s: float = 60.0,
    launcher: Launcher | None = None,
) -> list[Any]:
    """Call `function(fabric, *args)` on each of `nodes` processes; return the results by rank.

    `function` must be importable by name. Arguments are pickled, results go through JSON. `launcher` runs the
    processes; by default they run on this machine and use its loopback interface.

    Raises:
        RunFailed: if a process failed; with its message.
    """
    with scratch_folder() as folder:
        job = Job(target=_node, args=(function, args, folder, timeout_s), nodes=nodes, logs=folder / "logs")
        try:
            launch(launcher or LocalLauncher(), job)
        finally:
            if os.environ.get(TRACEBACK):
                for log in sorted(job.logs.glob("rank-*/stderr.log")):
                    sys.stderr.write(log.read_text(errors="replace"))
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(nodes)]


def _node(function: Callable[..., Any], args: tuple[Any, ...], folder: Path, timeout_s: float) -> None:
    torch.set_num_threads(1)
    with closing(connect(timeout_s=timeout_s)) as fabric:
        result = function(fabric, *args)
        (folder / f"{fabric.rank}.json").write_text(json.dumps(result))
