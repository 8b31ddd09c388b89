"""A function on n real processes that talk over gloo, for checks and tests."""

import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from istbench.fabric import connect
from istbench.launch.local import launch
from istbench.launch.place import Place


def on_nodes(
    function: Callable[..., Any], nodes: int, *args: Any, timeout_s: float = 60.0, place: Place | None = None
) -> list[Any]:
    """`function(fabric, *args)` on each of `nodes` processes; returns what each returned, by rank.

    `function` must be importable by name; arguments are pickled, results go through JSON. `place` is where the
    processes live, by default the loopback interface.

    Raises:
        RunFailed: where a process failed, with what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = (function, args, folder, timeout_s)
        launch(_node, target, nodes=nodes, logs=Path(folder) / "logs", threads=1, place=place)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(nodes)]


def _node(function: Callable[..., Any], args: tuple[Any, ...], folder: str, timeout_s: float) -> None:
    torch.set_num_threads(1)
    with closing(connect(timeout_s=timeout_s)) as fabric:
        result = function(fabric, *args)
        (Path(folder) / f"{fabric.rank}.json").write_text(json.dumps(result))
