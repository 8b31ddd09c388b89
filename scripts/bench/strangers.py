"""Walk the commands that read a results folder over hostile folders, and count the harm, as a markdown table.

Each command gets a copy of a good folder that one kind of hostility has changed. The program counts the commands
during which code of the folder executed, something outside the folder and the declared output changed, a traceback
appeared, or too much time passed. OUT/strangers.json holds every command with its last line.

    python scripts/bench/strangers.py OUT    # takes two hours on two cores
    python scripts/bench/strangers.py TARGET --kinds plugin --commands report-csv,replay-nodes    # to try it
"""

import argparse
import contextlib
import gc
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

RUN = ["--workload", "toy", "--nodes", "2", "--steps", "60", "--eval-every", "10", "--threads", "1"]
_NEXT_JOB = 4242
_SLURM = {"sbatch": f"echo Submitted batch job {_NEXT_JOB}", "srun": "", "squeue": "", "sacct": "", "scancel": ""}
"""Programs of a Slurm that takes a job and loses it."""
_PICTURES = ("toy-over-time", "toy-over-bytes", "toy-shares", "toy-time-to-target", "page")


@dataclass
class Box:
    """A folder for one command: `user/results` is hostile, the rest belongs to the user.

    Attributes:
        root: the box. stands: the directory in which the user types the command.
        fresh: whether the command needs a Python of its own, since the kind attacks the start of Python.
    """

    root: Path
    stands: Path = field(init=False)
    fresh: bool = False

    def __post_init__(self) -> None:
        self.stands = self.user

    @property
    def user(self) -> Path:
        """The directory of the user."""
        return self.root / "user"

    @property
    def results(self) -> Path:
        """The hostile results folder."""
        return self.user / "results"

    @property
    def home(self) -> Path:
        """The user's home, with private files."""
        return self.root / "home"

    @property
    def canary(self) -> Path:
        """The file to which hostile code writes."""
        return self.root / "EXECUTED"

    @property
    def code(self) -> str:
        """Python that shows that it ran."""
        return f"open({str(self.canary)!r}, 'a').write('x')\n"

    def runs(self) -> list[Path]:
        """The run directories in order."""
        return sorted((self.results / "runs").iterdir())

    @property
    def run(self) -> Path:
        """The first run directory, that of `ddp`."""
        return self.runs()[0]

    def change(self, **fields: Any) -> None:
        """Change fields of the header of every run; `config__plugins` is a field of `config`."""
        for run in self.runs():
            header = json.loads((run / "run.json").read_text())
            for name, value in fields.items():
                *parents, last = name.split("__")
                at = header
                for parent in parents:
                    at = at[parent]
                at[last] = value(header) if callable(value) else value
            (run / "run.json").write_text(json.dumps(header))

    def evil(self, name: str = "evil.py", more: str = "") -> Path:
        """A Python file of the folder that shows that it ran."""
        path = self.results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.code + more)
        return path

    def pickled(self) -> bytes:
        """A pickle that shows that it was read."""
        return pickle.dumps(_Runs(self.code))

    def link(self, place: Path, name: str) -> None:
        """Make `place` a link to a private file or directory of the user, which has its content if it had any."""
        target = self.home / "private" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            place.rename(target)
        elif "." in name:
            target.write_text("mine\n")
        else:
            target.mkdir()
            (target / "thesis.txt").write_text("precious\n")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)


class _Runs:
    """Executes code when unpickled."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._code,)


Kind = Callable[[Box], None]
KINDS: dict[str, Kind] = {
    "good": lambda box: None,
    "plugin-absolute": lambda box: box.change(config__plugins=[str(box.evil())]),
    "save-outside": lambda box: box.change(config__save=str(box.home / "weights")),
    "sinks-outside": lambda box: box.change(
        config__sinks=[f"mllog={box.home}", "tensorboard=../OUTSIDE", "evil:Evil=x"]
    ),
    "data-outside": lambda box: box.change(
        typed_data=str(box.home),
        data="speech_commands",
        data_source__path=str(box.home),
        config__workload_options={"data": str(box.home), "hidden": "../x"},
    ),
    "labels": lambda box: box.change(
        method_label="../../../OUTSIDE/x",
        workload_label="/../../x\u202e\n\x1b[2J",
        metric="../../x",
        data="../../../x",
        unit="\x1b]0;x\x07",
    ),
    "formula": lambda box: box.change(method_label="=cmd|calc\x1b[2J"),
    "resultless": lambda box: box.change(result=None),
}
"""By name, the change of a good folder."""

_OF_A_RUN = ("run.json", "events.jsonl", "trace.npz", "reserve.tmp", "checkpoint", "logs", "timeline")
LINKS = (
    *_OF_A_RUN, "run", "runs", "report", "advice.json", "advise", "tuning", "validation", "slurm", "tensorboard",
    "mlflow", "wandb", "mllog", "chakra",
)  # fmt: skip
"""Places where istbench writes: the first run directory, names in it, and names in the results folder."""

CELLS = {
    "up": "../../../VICTIM",
    "up-two": "../../VICTIM",
    "absolute": "/VICTIM",  # in the box
    "beside": "../../../OUTSIDE/x",
    "dot": ".",
    "dots": "..",
    "empty": "",
    "device": "/dev/null",
    "con": "CON",
    "long": "x" * 5000,
    "slash": "a/b",
    "newline": "cell\n",
    "nul": "cell\0",
    "cyrillic": "t\u043ey-ddp-n2-s0-0123abcd",
    "right-to-left": "toy\u202e-ddp",
    "full-width": "\uff54\uff4f\uff59-ddp",
    "slash-alike": "..\u2215..\u2215VICTIM",
    "other": "toy-ddp-n2-s0-00000000",
}
"""Names of cells in headers."""


def kind(name: str) -> Callable[[Kind], Kind]:
    """Register a kind of hostility."""

    def add(change: Kind) -> Kind:
        KINDS[name] = change
        return change

    return add


@kind("plugin")
def _plugin(box: Box) -> None:
    box.evil()
    box.change(config__plugins=["results/evil.py"])


@kind("plugin-up")
def _plugin_up(box: Box) -> None:
    box.evil()
    box.change(config__plugins=["../user/results/evil.py", "runs/../evil.py"])


@kind("plugin-with-digest")
def _plugin_with_digest(box: Box) -> None:
    method = (
        "from istbench.methods.data_parallel import DataParallel\nclass Evil(DataParallel):\n    name = 'evil'\n"
    )
    path = box.evil(more=method)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    box.change(method="evil", config__method="evil", config__code=digest, config__plugins=[str(path)])


@kind("workload-path")
def _workload_path(box: Box) -> None:
    box.evil()
    box.change(workload="results/evil.py", config__workload="results/evil.py")


@kind("workload-in-place")
def _workload_in_place(box: Box) -> None:
    box.evil()
    box.stands = box.results
    box.change(workload="evil.py", config__workload="evil.py")


@kind("workload-file-url")
def _workload_file_url(box: Box) -> None:
    path = f"file:{box.evil()}"
    box.change(workload=path, config__workload=path)


@kind("task-by-name")
def _task(box: Box) -> None:
    box.evil("task.py", "def model():\n    pass\ndef data(train):\n    pass\n")
    box.change(workload="task", config__workload="task", config__plugins=["results/task.py"])


@kind("method-path")
def _method_path(box: Box) -> None:
    box.evil()
    box.change(method="results/evil.py", config__method="results/evil.py")


@kind("module-names")
def _module_names(box: Box) -> None:
    box.evil()
    box.stands = box.results
    box.change(method="evil:Evil", config__method="evil:Evil", workload="evil", config__workload="evil")


@kind("standing-in-it")
def _standing(box: Box) -> None:
    box.stands, box.fresh = box.results, True
    for name in (
        "istbench", "numpy", "torch", "multiprocessing", "random", "msgspec", "click", "sitecustomize",
        "usercustomize", "conftest", "submitit", "matplotlib",
    ):  # fmt: skip
        box.evil(f"{name}.py")
    (box.results / "matplotlibrc").write_text("text.usetex: True\nbackend: module://evil\n")
    (box.results / ".env").write_text("PYTHONSTARTUP=evil.py\n")
    (box.results / "setup.cfg").write_text("[options.entry_points]\nistbench.methods =\n    evil = evil:Evil\n")
    info = box.results / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[istbench.methods]\nevil = evil:Evil\n")
    box.evil()


@kind("suite")
def _suite(box: Box) -> None:
    box.evil()
    (box.results / "suite.toml").write_text('workload = "results/evil.py"\nmethods = ["ddp"]\n')


@kind("suite-plugins")
def _suite_plugins(box: Box) -> None:
    box.evil()
    (box.results / "suite.toml").write_text(
        'workload = "toy"\nmethods = ["ddp"]\nplugins = ["results/evil.py"]\n[run]\nplugins = ["results/evil.py"]\n'
    )


def _cell_kind(name: str) -> Kind:
    def change(box: Box) -> None:
        for place in (box.root, box.user):
            (place / "VICTIM" / "checkpoint").mkdir(parents=True)
            (place / "VICTIM" / "checkpoint" / "thesis.txt").write_text("precious\n")
            (place / "OUTSIDE").mkdir()
        cell = f"{box.root}/VICTIM" if name == "/VICTIM" else name
        box.change(cell=cell)

    return change


for _name, _cell in CELLS.items():
    KINDS[f"cell-{_name}"] = _cell_kind(_cell)


@kind("renamed")
def _renamed(box: Box) -> None:
    for run in box.runs():
        run.rename(run.with_name(f"{run.name}-copy"))


def _link_kind(name: str) -> Kind:
    def change(box: Box) -> None:
        place = box.run if name == "run" else (box.run if name in _OF_A_RUN else box.results) / name
        box.link(place, name)

    return change


for _name in LINKS:
    KINDS[f"link-{_name}"] = _link_kind(_name)


@kind("link-pictures")
def _pictures(box: Box) -> None:
    report = box.results / "report"
    names = [path.name for path in report.iterdir()] if report.exists() else []
    for name in {*names, *(f"{name}.{ending}" for name in _PICTURES for ending in ("png", "svg", "html"))}:
        (report / name).unlink(missing_ok=True)
        box.link(report / name, name)


@kind("trace-of-pickles")
def _trace_of_pickles(box: Box) -> None:
    for run in box.runs():
        with zipfile.ZipFile(run / "trace.npz", "w") as archive:
            for name in ("header", "node0", "node1"):
                content = io.BytesIO()
                np.lib.format.write_array_header_1_0(
                    content, {"descr": "|O", "fortran_order": False, "shape": (1,)}
                )
                archive.writestr(f"{name}.npy", content.getvalue() + box.pickled())


@kind("trace-is-a-pickle")
def _trace_pickle(box: Box) -> None:
    for run in box.runs():
        (run / "trace.npz").write_bytes(box.pickled())


@kind("trace-without-end")
def _trace_without_end(box: Box) -> None:
    for run, target in zip(box.runs(), ("/dev/zero", "/dev/stdin"), strict=False):
        (run / "trace.npz").unlink()
        (run / "trace.npz").symlink_to(target)


@kind("fifos")
def _fifos(box: Box) -> None:
    for run in box.runs():
        for name in ("events.jsonl", "trace.npz"):
            (run / name).unlink()
            os.mkfifo(run / name)


@kind("fifos-beside")
def _fifos_beside(box: Box) -> None:
    """Pipes nobody writes to, at the other files that commands read or write in a results folder."""
    first = box.run
    (first / "checkpoint").mkdir(exist_ok=True)
    (box.results / "slurm").mkdir()
    for place in (
        "advice.json", "advice.jsonl", "suite.toml", "evil.record.json", "slurm/jobs.json", "report/page.html",
        f"runs/{first.name}/reserve.tmp", f"runs/{first.name}/checkpoint/latest.json",
    ):  # fmt: skip
        (box.results / place).unlink(missing_ok=True)
        os.mkfifo(box.results / place)


@kind("hard-links")
def _hard_links(box: Box) -> None:
    """Second names of private files of the user, at the files that istbench writes."""
    (box.results / "advice.jsonl").write_text("")
    files = [box.results / "advice.jsonl", *(path for path in box.results.rglob("*") if path.is_file())]
    private = box.home / "private"
    private.mkdir()
    for number, path in enumerate(sorted(set(files))):
        (private / str(number)).hardlink_to(path)
    for run in box.runs():
        (private / run.name).write_text("mine\n")
        (run / "reserve.tmp").hardlink_to(private / run.name)


@kind("jobs")
def _jobs(box: Box) -> None:
    """Results of submitit for the next job of Slurm, and for a job that jobs.json names."""
    slurm = box.results / "slurm"
    slurm.mkdir()
    for identity in (_NEXT_JOB, 7):
        (slurm / str(identity)).mkdir()
        for name in ("submitted.pkl", "0_result.pkl"):
            (slurm / str(identity) / f"{identity}_{name}").write_bytes(box.pickled())
    (slurm / "jobs.json").write_text(json.dumps({run.name: "7" for run in box.runs()}))


@kind("jobs-elsewhere")
def _jobs_elsewhere(box: Box) -> None:
    (box.results / "slurm").mkdir()
    (box.results / "evil").mkdir()
    for name in ("submitted.pkl", "0_result.pkl"):
        (box.results / "evil" / f"../evil_{name}").write_bytes(box.pickled())
    (box.results / "slurm" / "jobs.json").write_text(json.dumps({run.name: "../evil" for run in box.runs()}))


@kind("checkpoint-names")
def _checkpoint_names(box: Box) -> None:
    """A sealed manifest with names outside of its step."""
    for run in box.runs():
        step = run / "checkpoint" / "10"
        step.mkdir(parents=True)
        totals = {"step": 10, "train_s": 1.0, "wall_s": 1.0, "bytes_sent": 0, "bytes_received": 0}
        files = {
            name: {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
            for name in ("../../../../../home/private.json", "rank0.safetensors", "x.json\n")
        }
        contents = json.dumps({"totals": totals, "files": files})
        sealed = f'{{"sha256":"{hashlib.sha256(contents.encode()).hexdigest()}","contents":{contents}}}'
        (step / "manifest.json").write_text(sealed)
        digest = hashlib.sha256(sealed.encode()).hexdigest()
        (run / "checkpoint" / "latest.json").write_text(json.dumps({**totals, "manifest": digest}))


@kind("checkpoint-of-pickles")
def _checkpoint_pickles(box: Box) -> None:
    for run in box.runs():
        step = run / "checkpoint" / "10"
        step.mkdir(parents=True)
        for place in (run / "checkpoint", step):
            for name in ("latest.json", "manifest.json", "rank0.safetensors", "rank0.json", "model.pt", "rank0.pt"):
                (place / name).write_bytes(box.pickled())


@kind("nested")
def _nested(box: Box) -> None:
    for number, run in enumerate(box.runs()):
        deep = "[" * 100_000 + "]" * 100_000
        text = (run / "run.json").read_text()
        deep = deep if number else '{"config":' + deep + "," + text.strip()[1:]
        (run / "run.json").write_text(deep)
        (run / "events.jsonl").write_text(deep + "\n")


@kind("advice")
def _advice(box: Box) -> None:
    box.evil()
    (box.results / "advice.json").write_text(json.dumps({"command": ["sh", "-c", "touch EXECUTED"]}))
    (box.results / "advise").mkdir()
    (box.results / "advise" / "0.jsonl").write_text('{"type":"recorded","cell":"../../../VICTIM"}\n')


@kind("validation")
def _validation(box: Box) -> None:
    (box.results / "validation").mkdir()
    for name in ("measurements.json", "checked.json", "summary.json", "validation.json"):
        (box.results / "validation" / name).write_bytes(box.pickled())
    (box.results / "validation" / "checks.json").write_text("[" * 100_000)


@kind("record")
def _record(box: Box) -> None:
    (box.results / "evil.record.json").write_text(
        json.dumps({"version": 1, "script": str(box.evil()), "module": "evil", "modules": ["evil"]})
    )


@dataclass(frozen=True)
class Command:
    """The words of a command, for a box. `resumes`: the first run is unfinished before it."""

    words: Callable[[Box, str], list[str]]
    resumes: bool = False


def _plain(*words: str, resumes: bool = False) -> Command:
    """A command with RESULTS and RUN in its words."""

    def of(box: Box, results: str) -> list[str]:
        try:
            run = f"{results}/runs/{box.run.name}"
        except OSError:
            run = f"{results}/runs/none"
        return [word.replace("RESULTS", results).replace("RUN", run) for word in words]

    return Command(of, resumes=resumes)


_ON = ["--workload", "toy", "--threads", "1", "--out", "RESULTS"]
COMMANDS: dict[str, Command] = {
    "report": _plain("report", "RESULTS", "--explain"),
    "report-markdown": _plain("report", "RESULTS", "--format", "markdown", "--no-pictures"),
    "report-csv": _plain("report", "RESULTS", "--format", "csv", "--no-pictures"),
    "report-json": _plain("report", "RESULTS", "--format", "json", "--no-pictures"),
    "report-html": _plain("report", "RESULTS", "--html", "RESULTS/report/page.html", "--no-pictures"),
    "replay": _plain("replay", "RESULTS"),
    "replay-nodes": _plain("replay", "RESULTS", "--nodes", "4", "--no-pictures"),
    "replay-run": _plain("replay", "RUN", "--nodes", "4", "--no-pictures"),
    "replay-record": _plain("replay", "RESULTS/evil.record.json", "--nodes", "4"),
    "plan-record": _plain("plan", "RESULTS/evil.record.json", "--method", "ddp", "--nodes", "4"),
    "map": _plain("map", "RESULTS", "--target", "0.3"),
    "map-nodes": _plain("map", "RESULTS", "--nodes", "2,4", "--target", "0.3", "--no-pictures"),
    "timeline": _plain("timeline", "RUN"),
    "timeline-cluster": _plain("timeline", "RUN", "--cluster", "m5.2xlarge", "--out", "out"),
    **{
        f"export-{name}": _plain("export", "RESULTS", "--format", name)
        for name in ("tensorboard", "mlflow", "wandb", "mllog", "chakra")
    },
    "export-out": _plain("export", "RESULTS", "--format", "mllog", "--out", "out"),
    "export-run": _plain("export", "RUN", "--format", "chakra", "--out", "out"),
    "retrace": _plain("retrace", "RESULTS", "--all"),
    "reproduce-report": _plain("reproduce", "p3", "--report", "--out", "RESULTS"),
    "reproduce-list": _plain("reproduce", "p3", "--list", "--out", "RESULTS"),
    "run-other": _plain("run", *_ON, "--method", "ddp", "--seed", "1", "--steps", "4"),
    "run-done": _plain("run", *RUN, "--method", "ddp", "--out", "RESULTS", "--json"),
    "run-again": _plain("run", *RUN, "--method", "ddp", "--out", "RESULTS", "--again"),
    "run-resume": _plain("run", *RUN, "--method", "ddp", "--out", "RESULTS", resumes=True),
    "compare": _plain("compare", *RUN, "--methods", "ddp,ist", "--out", "RESULTS"),
    "compare-suite": _plain("compare", "RESULTS/suite.toml", "--threads", "1", "--out", "RESULTS"),
    "compare-jobs": _plain(
        "compare", *_ON, "--methods", "ddp", "--steps", "3", "--slurm", "partition=cpu", "--slurm", "cpus=1"
    ),
    "compare-debug": _plain(
        "compare", *_ON, "--methods", "ddp", "--steps", "2", "--slurm", "executor=debug", "--slurm", "cpus=1"
    ),
    "tune": _plain("tune", *_ON, "--methods", "ddp", "--trials", "1", "--steps", "4"),
    "advise": _plain(
        "advise", "toy", "--nodes", "2", "--bandwidth", "1gbit", "--methods", "ist", "--minutes", "0.5", "--target",
        "0.3", "--threads", "1", "--out", "RESULTS",
    ),
}  # fmt: skip
"""By name, a command that reads a results folder."""

_TEXTS = ("cell-up", "cell-right", "labels", "formula", "resultless", "nested", "plugin")
_FILES = ("fifos", "hard")
ONLY = {
    "report-markdown": _TEXTS,
    "report-csv": _TEXTS,
    "report-json": _TEXTS,
    "replay-record": ("record", *_FILES),
    "plan-record": ("record", *_FILES),
    "compare-suite": ("suite", "link-run", *_FILES),
    "compare-jobs": ("jobs", "link-slurm", "link-run", "standing", *_FILES),
    "compare-debug": ("jobs", "link-slurm", "renamed", *_FILES),
    "tune": ("plugin", "link", "renamed", "cell-up", "workload-path", "labels", "nested", *_FILES),
    "advise": (
        "plugin", "link-advi", "link-trace", "link-runs", "advice", "validation", "cell-up", "labels", *_FILES,
    ),
    "run-other": (
        "plugin", "link", "cell-up", "cell-dot", "save", "sinks", "data", "checkpoint", "standing", *_FILES,
    ),
}  # fmt: skip
"""By command, the beginnings of the only kinds that concern it, beside the good folder. The others read all."""


@dataclass
class Seen:
    """The harm of one command on one folder."""

    kind: str
    command: str
    status: int | str
    executed: int
    changed: list[str]
    traceback: bool
    seconds: float
    last: str


def snapshot(box: Box) -> dict[str, str]:
    """A digest of everything in the box but the results folder, the declared output and temporary files."""
    left_out = {box.results, box.user / "out", box.root / "tmp", box.root / "cache", box.canary}
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(box.root):
        here = Path(folder)
        folders[:] = [name for name in folders if here / name not in left_out]
        for name in (*folders, *files):
            path = here / name
            if path in left_out:
                continue
            if path.is_symlink():
                digest = f"-> {path.readlink()}"
            elif path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                digest = "directory" if path.is_dir() else "other"
            found[str(path.relative_to(box.root))] = digest
    return found


@contextlib.contextmanager
def prepared(good: Path, root: Path, change: Kind, command: Command) -> Iterator[Box]:
    """A box with a changed copy of the good folder, deleted at the end."""
    shutil.rmtree(root, ignore_errors=True)
    box = Box(root)
    for path in (box.home, root / "tmp", root / "bin"):
        path.mkdir(parents=True)
    (box.home / "thesis.txt").write_text("precious\n")
    for name, line in _SLURM.items():
        (root / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (root / "bin" / name).chmod(0o755)
    shutil.copytree(good, box.results)
    if command.resumes:
        box.change(status="interrupted", result=None)
    change(box)
    try:
        yield box
    finally:
        shutil.rmtree(root, ignore_errors=True)


def walk(good: Path, root: Path, kind: str, command: str, limit_s: float) -> Seen:
    """Run `command` over a folder of `kind` and look for harm."""
    with prepared(good, root, KINDS[kind], COMMANDS[command]) as box:
        words = COMMANDS[command].words(box, "." if box.stands == box.results else "results")
        before, began = snapshot(box), time.monotonic()
        run = _in_new_python if box.fresh else _in_fork
        status, said = run(box, words, limit_s)
        after = snapshot(box)
        changed = [path for path in sorted({*before, *after}) if before.get(path) != after.get(path)]
        lines = said.strip().splitlines()
        return Seen(
            kind=kind,
            command=command,
            status=status,
            executed=box.canary.stat().st_size if box.canary.exists() else 0,
            changed=changed,
            traceback="Traceback (most recent call last)" in said,
            seconds=round(time.monotonic() - began, 1),
            last=lines[-1][:400] if lines else "",
        )


def _environment(box: Box) -> dict[str, str]:
    cache = box.root.parent / "cache"
    return {
        "HOME": str(box.home),
        "PATH": f"{box.root / 'bin'}:{os.environ['PATH']}",
        "TMPDIR": str(box.root / "tmp"),
        "XDG_CACHE_HOME": str(cache),
        "XDG_CONFIG_HOME": str(cache),
        "MPLCONFIGDIR": str(cache),
        "ISTBENCH_CACHE": str(cache / "data"),
        "COLUMNS": "120",
        "WANDB_MODE": "offline",
    }


def _in_new_python(box: Box, words: list[str], limit_s: float) -> tuple[int | str, str]:
    program = [str(Path(sys.executable).with_name("istbench")), *words]
    environment = {**os.environ, **_environment(box)}
    with (box.root / "tmp" / "said").open("w+b") as said:
        process = subprocess.Popen(
            program, cwd=box.stands, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        return _ended(process.pid, limit_s), _text(box)


def _in_fork(box: Box, words: list[str], limit_s: float) -> tuple[int | str, str]:
    """Run the command in a fork of this process, which has imported istbench and torch already."""
    child = os.fork()
    if child == 0:
        _become(box, words)
    return _ended(child, limit_s), _text(box)


def _become(box: Box, words: list[str]) -> None:
    status = 99
    try:
        os.setsid()
        said = os.open(box.root / "tmp" / "said", os.O_WRONLY | os.O_CREAT, 0o600)
        for number in (1, 2):
            os.dup2(said, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(_environment(box))
        import tempfile

        tempfile.tempdir = None
        os.chdir(box.stands)
        sys.argv = ["istbench", *words]
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        # All commands share the fork server of their parent, which has imported torch.
        from multiprocessing import forkserver

        from istbench.cli import main

        setattr(forkserver._forkserver, "ensure_running", lambda: None)  # noqa: B010
        main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _text(box: Box) -> str:
    return (box.root / "tmp" / "said").read_text(errors="replace")


def _ended(process: int, limit_s: float) -> int | str:
    """The exit status of `process`, which leads a session, or `late` after `limit_s`. Ends the whole session."""
    until = time.monotonic() + limit_s
    status: int | str = "late"
    while time.monotonic() < until:
        found, code = os.waitpid(process, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(code)
            break
        time.sleep(0.02)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == process:
                os.kill(int(folder.name), signal.SIGKILL)
    if status == "late":
        os.waitpid(process, 0)
    return status


def train_good(out: Path) -> Path:
    """A results folder with a run of `ddp` and one of `ist`, trained once, with its pictures."""
    good = out / "good"
    if not (good / "report").exists():
        shutil.rmtree(good, ignore_errors=True)
        if status := _quietly(["compare", *RUN, "--methods", "ddp,ist", "--out", str(good)]):
            raise SystemExit(f"the good folder was not trained: compare ended with {status}")
    return good


def import_all() -> None:
    """Import the packages of all commands once, before the forks."""
    import importlib

    import istbench.cli

    names = [f"istbench.cli.{path.stem}" for path in Path(istbench.cli.__file__).parent.glob("*_command.py")]
    for name in (
        *names, "torch", "matplotlib.figure", "matplotlib.backends.backend_agg", "istbench.launch.cells.execute",
        "istbench.report.page", "istbench.report.map", "istbench.plan.redeal", "istbench.report.output.html.write",
    ):  # fmt: skip
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from istbench.launch.processes.local import preload

    preload()


def warm_up(good: Path) -> None:
    """Run commands that write nothing over the good folder: each fork would load compiled functions itself."""
    for words in (["report"], ["replay", "--nodes", "4"]):
        _quietly([words[0], str(good), *words[1:], "--no-pictures"])
    _quietly(["run", *RUN, "--method", "ddp", "--out", str(good), "--json"])
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all that it looks at


def _quietly(words: list[str]) -> object:
    """Run a command in this process without its output; returns its exit status."""
    from istbench.cli import main

    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        try:
            main(words)
        except SystemExit as end:
            return end.code
    return 0


def chosen(text: str | None, known: dict[str, Any]) -> list[str]:
    """The names in `text`, which may end in `*`; all of `known` without a text."""
    if text is None:
        return list(known)
    parts = text.split(",")
    listed = [name for part in parts for name in known if name == part or part == f"{name[: len(part) - 1]}*"]
    if not listed:
        raise SystemExit(f"none of {text}; known: {', '.join(known)}")
    return list(dict.fromkeys(listed))


def pairs_of(kinds: Sequence[str | None], commands: Sequence[str | None]) -> list[tuple[str, str]]:
    """Each kind with the commands that concern it. The first of `kinds` belong to the first of `commands`."""
    if len(kinds) != len(commands):
        raise SystemExit(f"{len(kinds)} times --kinds and {len(commands)} times --commands; give both as often")
    return [
        (name, command)
        for own, theirs in zip(kinds, commands, strict=True)
        for name in chosen(own, KINDS)
        for command in chosen(theirs, COMMANDS)
        if name == "good" or name.startswith(ONLY.get(command, ("",)))
    ]


def print_table(seen: list[Seen], limit_s: float) -> None:
    """A row for each kind, and the sums."""
    print("| folder | commands | executed | wrote outside | tracebacks | too long | statuses |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")

    def row(name: str, those: list[Seen]) -> None:
        statuses = {str(one.status): sum(other.status == one.status for other in those) for one in those}
        counts = [
            len(those), sum(bool(one.executed) for one in those), sum(bool(one.changed) for one in those),
            sum(one.traceback for one in those), sum(one.status == "late" for one in those),
        ]  # fmt: skip
        texts = [f"{status}: {count}" for status, count in sorted(statuses.items())]
        print(f"| {name} | {' | '.join(map(str, counts))} | {', '.join(texts)} |", flush=True)

    for name in dict.fromkeys(one.kind for one in seen):
        row(name, [one for one in seen if one.kind == name])
    row("all", seen)
    for one in seen:
        if one.executed or one.changed or one.traceback or one.status == "late":
            harm = ", ".join(
                [
                    *(["executed"] if one.executed else []),
                    *([f"changed {' '.join(one.changed[:4])}"] if one.changed else []),
                    *(["traceback"] if one.traceback else []),
                    *([f"not done in {limit_s:g} s"] if one.status == "late" else []),
                ]
            )
            print(f"- {one.kind}, {one.command}: {harm}: {one.last}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="for the good folder, the boxes and strangers.json")
    parser.add_argument(
        "--kinds", action="append", help="kinds of folders, with commas; cell* names all that begin so"
    )
    parser.add_argument(
        "--commands", action="append", help="commands for these kinds, with commas; export* likewise"
    )
    parser.add_argument("--jobs", type=int, default=2, help="commands side by side")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a command is too long")
    parser.add_argument("--list", action="store_true", help="print the kinds and the commands")
    arguments = parser.parse_args()
    if arguments.list:
        print("kinds:", *KINDS, "\ncommands:", *COMMANDS)
        return
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    pairs = pairs_of(arguments.kinds or [None], arguments.commands or [None])
    os.environ["OMP_NUM_THREADS"] = "1"  # threads of OpenMP do not survive a fork: its next loop waits for them
    import_all()
    good = train_good(out)
    warm_up(good)
    shards = []
    for shard in range(arguments.jobs):
        child = os.fork()
        if child == 0:
            lines = out / f"shard{shard}.jsonl"
            with lines.open("w") as file:
                for name, command in pairs[shard :: arguments.jobs]:
                    one = walk(good, out / f"box{shard}", name, command, arguments.limit)
                    file.write(json.dumps(vars(one)) + "\n")
                    file.flush()
            os._exit(0)
        shards.append(child)
    for child in shards:
        os.waitpid(child, 0)
    seen = [
        Seen(**json.loads(line))
        for shard in range(arguments.jobs)
        for line in (out / f"shard{shard}.jsonl").read_text().splitlines()
    ]
    order = {pair: place for place, pair in enumerate(pairs)}
    seen.sort(key=lambda one: order[one.kind, one.command])
    (out / "strangers.json").write_text(json.dumps([vars(one) for one in seen], indent=1))
    print_table(seen, arguments.limit)
    if len(seen) < len(pairs):
        raise SystemExit(f"{len(pairs) - len(seen)} commands were not walked")


if __name__ == "__main__":
    main()
