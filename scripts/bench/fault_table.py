"""The fault table: the end of a run over `--hosts` after each fault, in each phase, on rank 0 and on another rank.

The hosts are network namespaces of this machine (tests/ssh_hosts.py), new ones for each row. A row starts a small
run, holds it in a phase (held_phases.py) and makes the fault. Then it reads the exit status, the message and the
processes that still run on the hosts. It repairs the fault, or names a spare host in place of a lost one, and runs
the same command again. The weights must equal those of a run on this machine without a fault. The script prints
Markdown, each row as soon as it is known, and a summary. It needs Linux and root.

    python scripts/bench/fault_table.py --nodes 1 --only "kill -9, training, rank 0"    # to try it, as root
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from cells import run_cell
from host_faults import (
    DeadServer,
    Hosts,
    fill_disk,
    hosts,
    left_on,
    said_lines,
    set_link,
    shape_link,
    unshape_link,
    why_not,
)

PLUGIN = Path(__file__).with_name("held_phases.py")
PHASES = ("training", "exchanging", "evaluating", "assembling", "checkpointing")
OPERATIONS = {
    "training": r"train|step|exchang|averag|segment",
    "exchanging": r"exchang|averag",
    "evaluating": r"evaluat",
    "assembling": r"assembl|evaluat",
    "checkpointing": r"checkpoint|state",
}
"""By phase, words of an operation. The message must have one of them, outside its way out."""
_WAY_OUT = r"(?:the same command|run the same|goes? on|resume|start anew|checkpoint (?:came|is) home)[^;]*"
_OTHER = 1
_SLOW = "2mbit"
_SHORT_S = {"link down 5 s": 5.0, "SIGSTOP 20 s": 20.0}
_PATIENT_S = 60.0  # --timeout of runs that must not time out
_STARTS_S, _UNDER_WAY_S, _HOME_S, _LEFT_S, _RESUMES_S, _INTERRUPTS_S = 240.0, 1.0, 25.0, 30.0, 240.0, 45.0
_NOTICES_S = 80.0  # after the time-out: 20 s until ssh gives up, 15 s for last messages, then all hosts end
_SILENCE_S = 120.0  # until a host without a link ends its processes: after a minute, in up to 50 s
_RUN = [
    *("--method", "held", "--workload", "held", "--workload-set", "hidden=1024", "--seed", 1, "--steps", 32),
    *("--eval-every", 8, "--checkpoint-every", 0, "--threads", 1),
]


class Ended(Exception):  # noqa: N818
    """The script must end."""


class Unmade(Exception):  # noqa: N818
    """The reason why a row's fault could not be made in its phase."""


over = threading.Event()


def await_that(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until `condition` holds; returns False if it does not within `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if over.is_set():
            raise Ended
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@dataclass(frozen=True)
class Fault:
    """A fault: its kind, its phase and its rank."""

    what: str
    phase: str
    rank: int

    def __str__(self) -> str:
        return f"{self.what}, {self.phase}, rank {self.rank}"

    @property
    def lasts_s(self) -> float:
        """Seconds that a fault lasts, for a fault that a run must survive; otherwise 0."""
        return _SHORT_S.get(self.what, 0.0)

    @property
    def survived(self) -> bool:
        """Whether a run must continue after the fault."""
        return bool(self.lasts_s) or (self.what == "disk full" and self.rank > 0)

    @property
    def loses_host(self) -> bool:
        """Whether another host must take the place of this one."""
        return self.what == "link down for good"


def faults() -> list[Fault]:
    kinds = ("kill -9", "sshd killed", "link down 5 s", "link down for good", "SIGSTOP 20 s", "SIGSTOP for good")
    rows = [Fault(what, phase, rank) for what in kinds for phase in PHASES for rank in (0, _OTHER)]
    full = [Fault("disk full", phase, 0) for phase in ("training", "checkpointing")]
    return [*rows, *full, Fault("disk full", "training", _OTHER)]


@dataclass
class Row:
    """The outcome of a fault.

    Attributes:
        noticed_s: seconds from the fault to the end of the command; None if it did not end by itself in time.
        header: the status in the run's header on this machine. lacks: missing parts of the message.
        wrong: the reason for a missing row.
        resumed: the step from which the same command resumed, or its message if it did not.
    """

    fault: Fault
    noticed_s: float | None = None
    status: int = 0
    said: str = ""
    header: str = ""
    lacks: list[str] = field(default_factory=list)
    resumed: str = ""
    same: bool = False
    left: list[str] = field(default_factory=list)
    wrong: str = ""

    @property
    def in_time(self) -> bool:
        return self.noticed_s is not None

    @property
    def went_on(self) -> bool:
        return self.in_time and self.status == 0

    def __str__(self) -> str:
        fault = self.fault
        where = f"| {fault.what} | {fault.phase} | {fault.rank} |"
        if self.wrong:
            return f"{where} **{self.wrong}** | | | | | | | |"
        ended = "**not noticed**" if self.noticed_s is None else f"{self.noticed_s:.1f}"
        cells = [ended, str(self.status), self.header, self.said, ", ".join(self.lacks), self.resumed]
        cells += ["yes" if self.same else "**no**", "; ".join(self.left) or "none"]
        plain = (re.sub(r"\s*\n\s*", "<br>", cell).replace("|", "/") for cell in cells)
        return f"{where} {' | '.join(plain)} |"


def lacking(fault: Fault, said: str, resumed: str) -> list[str]:
    """Missing or wrong parts in the message of a fault that ended a run."""
    first, *more = said.splitlines() or [""]
    found = []
    named = re.findall(r"\bhost\d", first)
    if not named or named[0] != f"host{fault.rank}":
        found.append(f"the host (blames {named[0]})" if named else "the host")
    told = re.sub(_WAY_OUT, "", first)
    operation = r"disk|space|write" if fault.what == "disk full" else OPERATIONS[fault.phase]
    if not re.search(operation, told):
        found.append("the operation")
    if not re.search(r"same command|other hosts|another host|--hosts", first):
        found.append("a way out")
    elif fault.loses_host and not re.search(r"other hosts|hosts or others|another host|--hosts", first):
        found.append("a way out by other hosts")
    if "last checkpoint" in first and resumed == "0":
        found.append("promises a checkpoint that is not there")
    if more or "Traceback" in said:
        found.append(f"one line (has {len(more) + 1})")
    return found


class Trial:
    """A run on the first `nodes` of running hosts."""

    def __init__(self, found: Hosts, folder: Path, nodes: int, timeout_s: float) -> None:
        self.hosts, self.folder, self.nodes, self.timeout_s = found, folder, nodes, timeout_s
        self.names = list(found.names[:nodes])
        self.mend: Callable[[], object] = lambda: None

    def start(self, timeout_s: float, name: str) -> "Command":
        """Start the run, for the first time or again."""
        words = [*_RUN, "--json", "--out", self.hosts.out, "--timeout", timeout_s, "--hosts", ",".join(self.names)]
        return Command(words, self.folder, name, self.hosts.environment)

    def row(self, fault: Fault, digest: str) -> Row:
        """Make `fault`, observe the outcome, repair it and run the same command again."""
        timeout_s = self.timeout_s if "for good" in fault.what else _PATIENT_S
        (self.folder / "phase").write_text(fault.phase)
        with self.start(timeout_s, "first") as asked:
            self.reach(fault, asked)
            row = Row(fault)
            made = time.monotonic()
            self.make(fault)
            self.go_quickly(fault)
            if fault.lasts_s:
                await_that(lambda: asked.ended, fault.lasts_s)
                self.mend()
            if await_that(lambda: asked.ended, timeout_s + _NOTICES_S):
                row.noticed_s = asked.ended_at - made
            else:
                asked.interrupt()
            row.status, row.said, found = asked.status, "" if asked.status == 0 else asked.said, asked.digest
        row.header = self.header_status()
        lost = fault.rank if fault.loses_host else None
        row.left = self.left(_LEFT_S, but=lost)
        if fault.lasts_s == 0 and not fault.loses_host:
            self.mend()
        if row.went_on:
            row.same = found == digest
            return row
        (self.folder / "phase").unlink()
        if fault.loses_host:
            self.names[fault.rank] = self.hosts.names[self.nodes]
        with self.start(_PATIENT_S, "again") as again:
            await_that(lambda: again.ended, _RESUMES_S)
            row.same = again.digest == digest
            row.resumed = str(self.resumed_at()) if again.digest else f"**no**: {again.said}"
        if fault.loses_host:
            row.left += self.left(max(0, made + _SILENCE_S - time.monotonic()))
        row.lacks = lacking(fault, row.said, row.resumed) if row.in_time else []
        return row

    def reach(self, fault: Fault, asked: "Command") -> None:
        """Bring the run into the phase of `fault`."""
        ranks = range(self.nodes) if fault.phase != "evaluating" else range(1)
        at, past = ([self.folder / f"{word}-{rank}" for rank in ranks] for word in ("at", "past"))
        if not await_that(lambda: asked.ended or all(path.exists() for path in at), _STARTS_S) or asked.ended:
            raise Unmade(f"no rank reached phase {fault.phase}: {asked.said}")
        if fault.loses_host and fault.rank == 0:
            await_that(lambda: list(self.hosts.out.glob("runs/*/checkpoint/latest.json")), _HOME_S)
        if self.sends(fault.phase):
            for number in range(self.nodes):
                shape_link(self.hosts, number, _SLOW)
        (self.folder / "go").touch()
        await_that(lambda: asked.ended, _UNDER_WAY_S)
        if asked.ended or any(path.exists() for path in past):
            raise Unmade(f"phase {fault.phase} ended before the fault")

    def sends(self, phase: str) -> bool:
        """Whether nodes send tensors in this phase."""
        return phase in ("exchanging", "assembling", "checkpointing")

    def go_quickly(self, fault: Fault) -> None:
        """Remove the limits from the links."""
        for number in range(self.nodes) if self.sends(fault.phase) else ():
            unshape_link(self.hosts, number)

    def make(self, fault: Fault) -> None:
        """Make the fault; `self.mend` repairs it."""
        number = fault.rank
        worker = int((self.folder / f"pid-{number}").read_text())
        if fault.what == "kill -9":
            os.kill(worker, signal.SIGKILL)
        elif fault.what == "sshd killed":
            self.mend = DeadServer(self.hosts, number).mend
        elif fault.what.startswith("link down"):
            set_link(self.hosts, number, "down")
            self.mend = partial(set_link, self.hosts, number, "up")
        elif fault.what.startswith("SIGSTOP"):
            os.kill(worker, signal.SIGSTOP)
            self.mend = partial(wake, worker)
        else:
            self.hosts.resize(number, "64m")
            filler = fill_disk(self.hosts, number)
            self.mend = partial(self.free, number, filler)

    def free(self, number: int, filler: Path) -> None:
        """Give a host free disk space again."""
        filler.unlink()
        self.hosts.resize(number, "1g")

    def left(self, seconds: float, but: int | None = None) -> list[str]:
        """Processes that still run on the hosts after `seconds`, without those on host `but`."""

        def found() -> list[str]:
            numbers = [number for number in range(len(self.hosts.names)) if number != but]
            return [command for number in numbers for command in left_on(self.hosts, number)]

        await_that(lambda: not found(), seconds)
        return [command[-60:] for command in found()]

    def header_status(self) -> str:
        """The status in the run's header on this machine."""
        found = list(self.hosts.out.glob("runs/*/run.json"))
        return str(json.loads(found[0].read_text())["status"]) if found else "none here"

    def resumed_at(self) -> int:
        """The step from which the run last resumed; 0 if it started from the beginning."""
        (events,) = self.hosts.out.glob("runs/*/events.jsonl")
        lines = [json.loads(line) for line in events.read_text().splitlines() if line.endswith("}")]
        return int(next((line["step"] for line in reversed(lines) if line["event"] == "resume"), 0))


class Command:
    """A running command with the plug-in in `folder`. On exit, a command that still runs is killed."""

    def __init__(self, words: Iterable[object], folder: Path, name: str, environment: Mapping[str, str]) -> None:
        plugin = folder / PLUGIN.name
        shutil.copy(PLUGIN, plugin)
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "istbench", "run", *map(str, words), "--plugin", plugin],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.ended_at = 0.0

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def ended(self) -> bool:
        if self._process.poll() is None:
            return False
        self.ended_at = self.ended_at or time.monotonic()
        return True

    @property
    def status(self) -> int:
        return self._process.returncode if self.ended else -1

    @property
    def said(self) -> str:
        """Its last message, with all lines of it."""
        text = self._err.read_text(errors="replace")
        if "Traceback" in text:
            return text[text.index("Traceback") :].strip()
        lines = said_lines(text)
        return lines[-1] + text.rpartition(lines[-1])[2].rstrip() if lines else text[-300:].strip()

    @property
    def digest(self) -> str | None:
        """The digest of the weights that it printed."""
        lines = [line for line in self._out.read_text().splitlines() if line.startswith("{")]
        return str(json.loads(lines[-1])["weights_sha256"]) if lines else None

    def interrupt(self) -> None:
        """Interrupt it as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        await_that(lambda: self.ended, _INTERRUPTS_S)


def wake(process: int) -> None:
    """Continue a stopped process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def trial(nodes: int, spare: int, timeout_s: float) -> Iterator[Trial]:
    """Hosts for one row."""
    temporary = tempfile.TemporaryDirectory(prefix="istbench-faults-", ignore_cleanup_errors=True)
    with temporary as folder, hosts(nodes + spare, Path(folder) / "hosts") as found:
        yield Trial(found, Path(folder), nodes, timeout_s)


def undisturbed(nodes: int) -> str:
    """The digest of a run without a fault, on this machine alone."""
    with tempfile.TemporaryDirectory(prefix="istbench-faults-") as folder:
        plugin = shutil.copy(PLUGIN, folder)
        return str(run_cell(*_RUN, "--nodes", nodes, "--plugin", plugin)["weights_sha256"])


def tried(fault: Fault, nodes: int, digest: str, timeout_s: float) -> Row:
    try:
        with trial(nodes, int(fault.loses_host), timeout_s) as made:
            return made.row(fault, digest)
    except Ended:
        raise
    except Exception as error:  # the other rows continue
        return Row(fault, wrong=f"no row: {error!r}"[:300])


def summary(rows: list[Row]) -> str:
    """Counts of the rows with the expected outcome."""
    made = [row for row in rows if row.noticed_s is not None or not row.wrong]
    ended = [row for row in made if not row.went_on]
    to_survive = [row for row in made if row.fault.survived]
    counts = {
        "noticed in time": ([row for row in made if row.in_time], made),
        "continued, of runs that must survive": ([row for row in to_survive if row.went_on], to_survive),
        "complete and right messages": ([row for row in ended if row.in_time and not row.lacks], ended),
        "ended with the digest of a run without a fault": ([row for row in made if row.same], made),
        "nothing left running": ([row for row in made if not row.left], made),
    }
    lines = [f"- {what}: {len(good)} of {len(every)}" for what, (good, every) in counts.items()]
    lines += [f"- rows that could not be made: {len(rows) - len(made)}"] if len(made) < len(rows) else []
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="only rows whose name matches this regular expression"
    )
    parser.add_argument("--tree", type=Path, metavar="DIR", help="another checkout of istbench to test")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="--timeout of runs with a lasting fault"
    )
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="hosts of a run")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of rows at a time")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    asked = parser.parse_args()
    chosen = [fault for fault in faults() if re.search(asked.only, str(fault))]
    if asked.list:
        print("\n".join(map(str, chosen)))
        return 0
    if asked.tree is not None:
        again_with(asked.tree.resolve())
    if reason := why_not():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, interrupted)
    started = time.monotonic()
    digest = undisturbed(asked.nodes)
    print(f"Without a fault: {digest[:12]} in {time.monotonic() - started:.0f} s\n")
    print("| fault | phase | rank | noticed, s | status | run.json | message | it lacks | resumed | same | left |")
    print("| :--- | :--- | ---: | ---: | ---: | :--- | :--- | :--- | ---: | :--- | :--- |", flush=True)
    rows = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        try:
            trials = [pool.submit(tried, fault, asked.nodes, digest, asked.timeout) for fault in chosen]
            for done in as_completed(trials):
                rows.append(done.result())
                print(rows[-1], flush=True)
        except BaseException as error:
            over.set()
            pool.shutdown(cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
    minutes = (time.monotonic() - started) / 60
    print(f"\n{summary(rows)}\n\n{len(rows)} of {len(chosen)} rows in {minutes:.0f} min")
    return 0 if len(rows) == len(chosen) else 130


def again_with(tree: Path) -> None:
    """Run this script again with the istbench of `tree`, here and on the hosts, unless it runs with it already."""
    paths = f"{tree}:{tree / 'tests'}"
    if os.environ.get("PYTHONPATH") != paths:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONPATH": paths})


def interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
