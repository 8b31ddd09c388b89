"""Faults for a run on this machine, from a thread beside its launcher."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from istbench.base.errors import UserError
from istbench.base.processes import descendants
from istbench.launch.backends.backend import Screen
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.failures import read_progress
from istbench.results.curves import Curve
from istbench.results.events import Evaluation
from istbench.results.fault_record import FaultRecord, Hit
from istbench.results.header import Header
from istbench.results.run_parts import resizes
from istbench.results.store import RunDirectory
from istbench.studies.faults.schedule import PlannedFault
from istbench.studies.faults.small_disk import SmallDisk

_POLL_S = 0.01
_SLOW = 0.1  # of its bandwidth
_LOG = re.compile(r"/logs/rank-([0-9]+)/")


def seconds_at(step: int, curve: Curve) -> float:
    """Train seconds of `step` steps, by the `curve` of another run. On more nodes, that may have had fewer."""
    steps = [own.step for own in curve.evaluations]
    beyond = step / steps[-1] if steps[-1] else 1.0
    return float(np.interp(step, steps, curve.seconds)) * max(1.0, beyond)


class FaultClock:
    """Train seconds of all steps so far, also of those that were lost.

    pace: the curve of the run without faults. By it, a fault comes at the same step on any machine.
    """

    def __init__(self, pace: Curve) -> None:
        self._pace, self._step = pace, 0
        self.seconds = 0.0

    def look(self, step: int) -> float:
        """The seconds, when `step` is the last step done; 0 before the first one of an attempt."""
        if step:
            before = self._step if 0 < self._step <= step else step - 1
            self.seconds += seconds_at(step, self._pace) - seconds_at(before, self._pace)
        self._step = step
        return self.seconds


class Injector:
    """Hits the run in `run` with `faults`, in order, each at its train seconds.

    Args:
        pace: the curve of the run without faults. nodes: of the run. scratch: its temporary directory.
        lab: None for this machine alone. disk: of the run directory, if the faults fill it.

    Attributes:
        began: when the first evaluation ended, in seconds since 1970; None before. hits: the faults so far.
    """

    def __init__(
        self,
        faults: Sequence[PlannedFault],
        pace: Curve,
        nodes: int,
        run: RunDirectory,
        scratch: Path,
        lab: ShapedNetwork | None,
        disk: SmallDisk | None = None,
    ) -> None:
        self._disk = disk
        self._waiting, self._clock, self._nodes = list(faults), FaultClock(pace), nodes
        self._run, self._scratch, self._lab = run, scratch, lab
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="faults", daemon=True)
        self.began: float | None = None
        self.hits: list[Hit] = []

    def __enter__(self) -> "Injector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.began is not None:
            FaultRecord(began=self.began, hits=tuple(self.hits)).write(self._run.faults)

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            if self.began is None:
                self._begin()
                continue
            step = read_progress(self._scratch).step
            if self._waiting and self._clock.look(step) >= self._waiting[0].at_s:
                self.hit(step)

    def _begin(self) -> None:
        with contextlib.suppress(OSError, UserError):
            first = next((event for event in self._run.events() if isinstance(event, Evaluation)), None)
            if first is not None:
                self.began = self._run.events_jsonl.stat().st_mtime

    def hit(self, step: int) -> None:
        """Hit the run with the next fault after `step`, if all of its workers are there."""
        workers, nodes = workers_in(self._scratch), self._nodes_now()
        if len(workers) < nodes:
            return
        fault = self._waiting.pop(0)
        rank, began = fault.victim(nodes), time.time()
        with contextlib.suppress(ProcessLookupError, UserError):  # the run has just ended
            self._act(fault, rank, workers)
        hit = Hit(
            kind=fault.type.kind, rank=rank, at_s=fault.at_s, seconds=fault.type.seconds, time=began, step=step
        )
        self.hits.append(hit)

    def _nodes_now(self) -> int:
        """The nodes of the run, which are fewer after a loss with `--elastic`."""
        with contextlib.suppress(OSError, UserError):
            for change in resizes(self._run.events())[-1:]:
                return change.after
        return self._nodes

    def _act(self, fault: PlannedFault, rank: int, workers: dict[int, int]) -> None:
        kind, lasting_s, lab = fault.type.kind, fault.type.seconds, self._lab
        host_nodes = lab.host_nodes if lab else 1
        host = rank // host_nodes
        if kind == "stop":
            os.kill(workers[rank], signal.SIGSTOP)
            self._wait(lasting_s)
            os.kill(workers[rank], signal.SIGCONT)
        elif kind == "full" and self._disk is not None:
            self._disk.fill()
            self._wait(lasting_s)
            self._disk.free()
        elif kind == "down" and lab is not None:
            lab.cut(host)
            self._wait(lasting_s)
            lab.cut(host, cut=False)
        elif kind == "slow" and lab is not None:
            lab.limit(host, _SLOW)
            self._wait(lasting_s)
            lab.limit(host, 1.0)
        else:
            if kind == "damage":
                damage_newest(self._run.checkpoint, fault.place)
            lost = [rank] if kind != "host" else range(host * host_nodes, (host + 1) * host_nodes)
            for own in workers.keys() & {*lost}:
                os.kill(workers[own], signal.SIGKILL)

    def _wait(self, seconds: float) -> None:
        self._over.wait(seconds * (self._lab.lab.dilation if self._lab else 1.0))


class FaultyScreen:
    """A screen whose runs are hit by `faults`."""

    def __init__(
        self, screen: Screen, faults: Sequence[PlannedFault], pace: Curve, lab: ShapedNetwork | None
    ) -> None:
        self._screen, self._faults, self._pace, self._lab = screen, faults, pace, lab
        self.note, self.preparing = screen.note, screen.preparing

    @contextlib.contextmanager
    def training(self, header: Header, run: RunDirectory) -> Iterator[Path]:
        """Show the progress of `run` inside the block, and hit it."""
        fills = any(fault.type.kind == "full" for fault in self._faults)
        disk = SmallDisk(run.path) if fills else None
        with (
            disk or contextlib.nullcontext(),
            self._screen.training(header, run) as scratch,
            Injector(self._faults, self._pace, header.nodes, run, scratch, self._lab, disk),
        ):
            yield scratch


def workers_in(scratch: Path) -> dict[int, int]:
    """The process ids of the living workers whose output goes to `scratch`, by rank."""
    found: dict[int, int] = {}
    for process in descendants():
        with contextlib.suppress(OSError):
            path = Path(f"/proc/{process}/fd/1").readlink()
            log = _LOG.search(str(path))
            if log is not None and path.is_relative_to(scratch):
                found.setdefault(int(log[1]), process)  # its children, such as those of a DataLoader, come later
    return found


def damage_newest(checkpoint: Path, place: float) -> None:
    """Flip a bit in the newest of several steps in directory `checkpoint`; `place` selects the file.

    Without an older step the run would begin anew, again and again where checkpoints are few.
    """
    with contextlib.suppress(OSError):
        steps = sorted(
            (path.parent for path in checkpoint.glob("*/manifest.json")), key=lambda step: int(step.name)
        )
        if len(steps) > 1:
            files = sorted(path for path in steps[-1].iterdir() if path.name.startswith("rank-"))
            file = files[int(place * len(files))]
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
