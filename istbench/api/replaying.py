"""Shared by commands that replay: lines on stderr in long replays, other numbers of nodes, recorded scripts."""

import atexit
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from istbench.base.errors import UserError
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.task_file import named_with_file
from istbench.cluster.profile import THIS, ClusterProfile, select_clusters

if TYPE_CHECKING:
    from istbench.cluster.script_record import ScriptRecord
    from istbench.results.on_cluster import Redeal

SCRIPT_NODES = (2, 4, 8)
"""Numbers of nodes of a recorded script, unless the user names others."""


@contextmanager
def replaying(
    *, quiet: bool = False, patience_s: float = 1.5, line_s: float = 3.0
) -> Iterator[Callable[[int, int], None]]:
    """Replay inside the block. After `patience_s`, one line gives the reason for the wait, unless `quiet`.

    Yields a function to call with the runs that are replayed, and all of them: every `line_s`, a line tells both.
    """
    # At its end Python searches the objects of the simulation for garbage, which takes a third of a second.
    atexit.register(gc.freeze)
    timer = threading.Timer(patience_s, _say_why)
    timer.daemon = True
    if not quiet:
        timer.start()
    told = time.monotonic()

    def tell(done: int, runs: int) -> None:
        nonlocal told
        if not quiet and time.monotonic() - told >= line_s:
            told = time.monotonic()
            print(f"replayed {done:,} of {runs:,} runs", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        timer.cancel()


def _say_why() -> None:
    # Another thread may be importing the simulator: it has not all names then.
    compiles = getattr(sys.modules.get("istbench.cluster.simulator.simulate"), "compiles", None)
    why = "; the first long replay on a machine compiles the simulation, which takes some 15 seconds"
    print(f"replaying{why if compiles is not None and compiles() else ''}", file=sys.stderr, flush=True)


def named_code(
    workload: str | None, plugins: tuple[str, ...], *, needed: bool = True
) -> tuple[str | None, tuple[str, ...]]:
    """The name in `--workload NAME|FILE.py`, if typed, and the files of it and of `--plugin`.

    Raises:
        UserError: for `--plugin` where no code is `needed`, since there are no `--nodes`.
    """
    if plugins and not needed:
        raise UserError("--plugin has the code that --nodes needs; add --nodes, or leave --plugin out")
    return (None, plugins) if workload is None else named_with_file(workload, plugins)


MAP_LATENCIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Seconds, rows of a map by latency, unless the user names others."""


def map_latencies(by: str, given: Sequence[float]) -> Sequence[float]:
    """The latencies of a map with rows by `by`: those `given` or the usual ones by latency, else none.

    Raises:
        UserError: for latencies beside other rows.
    """
    if by != "latency" and given:
        raise UserError("--latency is for --by latency; add it, or leave --latency out")
    return (given or MAP_LATENCIES) if by == "latency" else ()


def redealing(plugins: Iterable[str]) -> "Redeal":
    """The function that deals a recorded run to another number of nodes, with the code of plug-ins in `plugins`."""
    from istbench.plan.redeal import redeal  # torch, which no other replay needs

    return partial(redeal, plugins=tuple(plugins))


def clusters_of(
    record: "ScriptRecord", names: Sequence[str], bandwidths: Sequence[float], latencies: Sequence[float]
) -> tuple[dict[str, list[ClusterProfile]], tuple[str, ...]]:
    """The clusters `names` for `record`, as `select_clusters` has them, and phrases about what nobody named.

    Raises:
        UserError: as `select_clusters` does.
    """
    from istbench.cluster.this_machine import machines_of  # numpy, which help and lists need not

    chosen = names or [THIS]
    selected = select_clusters(chosen, bandwidths, latencies, machines_of(record))
    if THIS not in chosen or bandwidths:
        return selected, ()
    return selected, (f"the links are those of {DEFAULT_CLUSTER}: --bandwidth and --latency name yours",)
