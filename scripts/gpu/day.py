"""What one GPU shows about istbench, in one command of under nine minutes that writes one folder.

    python scripts/gpu/day.py --cifar10 DIR --out gpu-day
    python scripts/gpu/day.py --device cpu --parts compare,plans --out gpu-day --minutes 60
    python scripts/gpu/day.py --device cpu --parts identities,compare --methods dslide --most-nodes 1    # to try it

Each part has a share of the minutes, and leaves out the rest of its list when they are over:

- doctor: `istbench doctor` and nvidia-smi.
- first: a run that fills the caches of compiled code.
- records: `istbench record` of networks of torchvision and of GPT-2 small.
- identities: each method trains on the GPU: one process with NCCL, two and four on the same GPU with gloo.
- memory: the allocator's peak.
- kills: a run is killed after its first checkpoint. The same command must end in the undisturbed weights.
- curves: ResNet18 of 64 channels on CIFAR-10 by three methods on two nodes.

Two more parts need no GPU, and complete a folder afterwards:

- compare: the same cells on processors, and their distance from the GPU's weights.
- plans: the sums of `istbench plan` beside the measured memory.

`--wheels DIR` installs packages that the machine lacks, without a network. `--device cpu` replaces the GPU.
"""

import argparse
import csv
import dataclasses
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_TEXT = HERE.parents[1] / "LICENSE"

_WORKLOADS = {
    "mlp": ("toy", "hidden=64 layers=2 features=32 batch_norm=true bias=false", ("--batch-size=16", "--steps=24")),
    "plain": ("toy", "hidden=64 layers=2 features=32", ("--batch-size=16", "--steps=24")),
    "convolutions": ("cifar10", "width=8", ("--batch-size=16", "--steps=2")),
    "transformer": (
        "text",
        "layers=2 width=32 heads=2 context=32",
        ("--batch-size=8", "--steps=12", f"--data={_TEXT}"),
    ),
    "labels": ("amazon670k", "hidden=16 features=512 labels=256 points=2048", ("--batch-size=32", "--steps=12")),
}
"""By name: a workload, its options, and options of its runs."""
_FIRST = ("ddp", "ist", "local_sgd", "p3", "fsdp", "zero", "diloco", "streaming_ist")
"""Methods that come first, because time may not suffice for all."""
_SPLIT = ("model_parallel", "dslide", "sampled_softmax")
"""Methods of networks with many outputs: the only workload that they take is `labels`."""
_OF_OTHERS = (("mlp", 1), ("mlp", 2), ("mlp", 4), ("convolutions", 2), ("transformer", 2))
_OF_SPLIT = (("labels", 1), ("labels", 2), ("labels", 4))
"""Workloads and numbers of nodes on which a method trains for `identities`."""
_EQUAL = (
    ("parameter_server", "p3"),
    ("ddp", "zero"),
    ("ddp", "fsdp"),
    ("ddp", "local_sgd local_steps=1"),
    ("local_sgd local_steps=4", "diloco local_steps=4 optimizer=sgd lr=0.1 outer_lr=1 outer_momentum=0"),
)
"""Pairs whose weights agree after any number of steps."""
_RECORDS = {
    "resnet50": ("image_steps.py", "--model=resnet50"),
    "resnet50-bf16-compiled": ("image_steps.py", "--model=resnet50", "--batch-size=256", "--bf16", "--compile"),
    "gpt2-bf16-compiled": ("gpt2_steps.py", "--bf16", "--compile"),
    "resnext101": ("image_steps.py", "--model=resnext101_32x8d"),
    "resnet101": ("image_steps.py", "--model=resnet101"),
    "resnext50": ("image_steps.py", "--model=resnext50_32x4d"),
}
_SMALL_RECORDS = {
    "resnet18": ("image_steps.py", "--model=resnet18", "--batch-size=2", "--side=32"),
    "gpt2": ("gpt2_steps.py", "--layers=1", "--width=32", "--heads=2", "--tokens=16", "--batch-size=1"),
}
_CURVES = ("ddp", "local_sgd local_steps=16", "ist local_steps=16")


@dataclass(frozen=True, kw_only=True)
class Day:
    """What is asked, where the folder is, and when the day ends."""

    device: str
    methods: list[str]
    most_nodes: int
    jobs: int
    out: Path
    scratch: Path
    cifar10: Path | None
    ends: float

    @property
    def left_s(self) -> float:
        """Seconds until the day ends."""
        return self.ends - time.monotonic()

    def say(self, text: str) -> None:
        """Tell the terminal, with the seconds that are left."""
        print(f"[{self.left_s:5.0f} s left] {text}", file=sys.stderr, flush=True)

    def istbench(self, *words: object, limit_s: float = 150.0, tf32: bool = False) -> "Ended":
        """Run a command of istbench to its end or for `limit_s` seconds."""
        environment = {**os.environ, "DAY_DEVICE": self.device}
        if not tf32:  # else convolutions round to ten bits, and no run on processors is equal
            environment["NVIDIA_TF32_OVERRIDE"] = "0"
        if self.left_s < 5:
            return Ended(code=-1, said="", errors="no time left", seconds=0.0)
        limit_s = min(limit_s, self.left_s)
        started = time.monotonic()
        command = [sys.executable, "-m", "istbench", *map(str, words)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            said, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                said, errors = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, errors = process.communicate()
            errors += f"\nended after {limit_s:.0f} s"
        if process.returncode:
            with (self.out / "errors.txt").open("a") as file:
                file.write(f"$ istbench {' '.join(map(str, words))}\n{errors[-3000:]}\n\n")
        return Ended(code=process.returncode, said=said, errors=errors, seconds=time.monotonic() - started)

    def run_cell(self, cell: "Cell", out: Path, save: Path | None = None, **how: Any) -> "Ended":
        return self.istbench(
            "run", "--json", "--out", out, *([f"--save={save}"] if save else []), *cell.words, **how
        )


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    said: str
    errors: str
    seconds: float

    @property
    def result(self) -> dict[str, Any]:
        """What `--json` printed."""
        found: dict[str, Any] = json.loads(self.said)
        return found

    @property
    def why(self) -> str:
        """The line that says why it failed."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        named = [line for line in lines if "error" in line.lower()]
        return (named or lines or ["no word"])[-1][:200]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run: a workload of `_WORKLOADS`, a method with its options, nodes and a device."""

    workload: str
    method: str
    nodes: int
    device: str
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{self.workload}-{self.method.replace(' ', '-')}-{self.nodes}"

    @property
    def words(self) -> list[str]:
        """The words after `istbench run`."""
        name, options, sizes = _WORKLOADS[self.workload]
        method, *settings = self.method.split()
        return [
            f"--workload={name}",
            *(f"--workload-set={option}" for option in options.split()),
            f"--method={method}",
            *(f"--set={setting}" for setting in settings),
            f"--nodes={self.nodes}",
            f"--device={self.device}",
            "--threads=1",
            *sizes,
            *self.more,
        ]


def describe_machine(day: Day) -> None:
    """Write the versions and the GPU, unless an earlier command did."""
    file = day.out / "machine.json"
    if file.exists():
        return
    import torch

    gpu = torch.cuda.is_available()
    found = {
        "device": day.device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if gpu else None,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,
    }
    file.write_text(json.dumps(found, indent=2) + "\n")


def doctor(day: Day) -> None:
    """What `doctor` finds, and the GPU's own words."""
    found = day.istbench("doctor").said
    if shutil.which("nvidia-smi"):
        found += subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout
    (day.out / "doctor.txt").write_text(found)


def first(day: Day) -> None:
    """Train for some steps, so that later runs find compiled code."""
    size = ("--workload=cifar10", "--workload-set=width=4", "--method=ddp", "--nodes=2", "--steps=6")
    day.istbench("run", "--json", *size, "--device=cpu", "--out", day.scratch / "first")


def identities(day: Day) -> None:
    """Every method on the GPU. `compare` puts the weights beside those of processors."""
    (day.out / "identities").mkdir(exist_ok=True)
    with ThreadPoolExecutor(day.jobs) as pool:
        list(pool.map(lambda cell: _kept(day, cell, day.out / "identities"), _cells(day)))


def _cells(day: Day) -> list[Cell]:
    cells = [
        Cell(workload=workload, method=method, nodes=nodes, device=day.device)
        for method in day.methods
        for workload, nodes in (_OF_SPLIT if method in _SPLIT else _OF_OTHERS)
        if nodes <= day.most_nodes
    ]
    paired = dict.fromkeys(method for pair in _pairs(day) for method in pair)
    return list(dict.fromkeys([*cells, *(_paired(method, day.device) for method in paired)]))


def _pairs(day: Day) -> list[tuple[str, str]]:
    return [pair for pair in _EQUAL if {method.split()[0] for method in pair} <= set(day.methods)]


def _paired(method: str, device: str) -> Cell:
    return Cell(workload="plain", method=method, nodes=2, device=device)


def _kept(day: Day, cell: Cell, folder: Path) -> None:
    """Train a cell, and keep its result and weights in `folder`."""
    weights = day.scratch / folder.name / cell.name
    ended = day.run_cell(cell, day.scratch / "runs" / folder.name, weights)
    result = {"why": ended.why} if ended.code else ended.result
    (folder / f"{cell.name}.json").write_text(json.dumps(result | {"seconds": round(ended.seconds, 1)}))
    if not ended.code:
        shutil.copy(weights / "model.safetensors", folder / f"{cell.name}.safetensors")


def compare(day: Day) -> None:
    """Train each kept cell on processors, compare, and plan the measured memory. Needs no GPU."""
    device = json.loads((day.out / "machine.json").read_text())["device"]
    cells = [cell for cell in _cells(dataclasses.replace(day, device=device)) if _result(day, cell) is not None]
    (day.out / "processors").mkdir(exist_ok=True)
    with ThreadPoolExecutor(day.jobs) as pool:
        list(pool.map(lambda cell: _kept(day, cell, day.out / "processors"), map(_on_cpu, cells)))
    rows = []
    for cell in cells:
        row = {"workload": cell.workload, "method": cell.method, "nodes": cell.nodes, "compared_with": "processors"}
        here, there = day.out / "identities" / cell.name, day.out / "processors" / _on_cpu(cell).name
        rows.append(row | _compared(here, there))
    for first, second in _pairs(day):
        one, other = (day.out / "identities" / _paired(method, device).name for method in (first, second))
        row = {"workload": "plain", "method": second, "nodes": 2, "compared_with": first}
        rows.append(row | _compared(other, one))
    _write(day.out / "identities.csv", rows)


def _result(day: Day, cell: Cell) -> dict[str, Any] | None:
    file = day.out / "identities" / f"{cell.name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def _on_cpu(cell: Cell) -> Cell:
    return dataclasses.replace(cell, device="cpu")


def _compared(first: Path, second: Path) -> dict[str, Any]:
    """The distance of two kept models: the length of their difference over the length of the second."""
    ours, theirs = (json.loads(path.with_name(f"{path.name}.json").read_text()) for path in (first, second))
    for result in (ours, theirs):
        if "why" in result:
            return {"verdict": "failed", "why": result["why"], "seconds": result["seconds"]}
    from safetensors.numpy import load_file

    weights, others = (load_file(path.with_name(f"{path.name}.safetensors")) for path in (first, second))
    apart = math.fsum(float(((values.astype(float) - others[name]) ** 2).sum()) for name, values in weights.items())
    length = math.fsum(float((values.astype(float) ** 2).sum()) for values in others.values())
    distance = math.sqrt(apart / length)
    same = ours["weights_sha256"] == theirs["weights_sha256"]
    return {
        "verdict": "equal" if same else "rounding" if distance < 1e-4 else "differs",
        "relative_distance": f"{distance:.1e}",
        "loss": round(ours["final"]["loss"], 6),
        "loss_compared": round(theirs["final"]["loss"], 6),
        "bytes_sent": ours["bytes_sent_per_node"],
        "bytes_sent_compared": theirs["bytes_sent_per_node"],
        "seconds": ours["seconds"],
    }


def kills(day: Day) -> None:
    """A run killed after its first checkpoint resumes to the undisturbed weights."""
    methods = [method for method in day.methods if method not in _SPLIT]
    with ThreadPoolExecutor(day.jobs) as pool:
        rows = list(pool.map(lambda method: _killed(day, method), methods))
    _write(day.out / "kills.csv", rows)


def _killed(day: Day, method: str) -> dict[str, Any]:
    more = ("--steps=400", "--eval-every=20", "--checkpoint-every=0")
    cell = Cell(workload="mlp", method=method, nodes=2, device=day.device, more=more)
    whole = day.run_cell(cell, day.scratch / "undisturbed")
    if whole.code:
        return {"method": method, "verdict": "failed", "why": whole.why}
    out = day.scratch / "killed" / method
    words = [sys.executable, "-m", "istbench", "run", "--json", "--out", str(out), *cell.words]
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0"}
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment
    )
    until = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < until and not list(out.glob("runs/*/checkpoint/*")):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    events = [json.loads(line) for file in out.glob("runs/*/events.jsonl") for line in file.open()]
    again = day.run_cell(cell, out)
    if again.code:
        return {"method": method, "verdict": "failed", "why": again.why}
    return {
        "method": method,
        "killed_after_evaluations": sum(event["event"] == "evaluation" for event in events),
        "verdict": "equal" if again.result["weights_sha256"] == whole.result["weights_sha256"] else "differs",
    }


def records(day: Day) -> None:
    """Recorded scripts: seconds of a step, gradients' moments, peak memory."""
    (day.out / "records").mkdir(exist_ok=True)
    rows = []
    for name, (script, *arguments) in (_RECORDS if day.device == "cuda" else _SMALL_RECORDS).items():
        record = day.out / "records" / f"{name}.record.json"
        ended = day.istbench("record", "--json", "--out", record, HERE / script, *arguments, limit_s=110, tf32=True)
        row: dict[str, Any] = {"script": name, "arguments": " ".join(arguments), "seconds": round(ended.seconds, 1)}
        if ended.code:
            rows.append(row | {"why": ended.why})
            continue
        result = ended.result
        rows.append(
            row
            | {
                "step_s": result["step_s"],
                "first_gradient_s": result["gradient_ready_s"][0],
                "last_gradient_s": result["gradient_ready_s"][-1],
                "parameters_bytes": sum(parameter["bytes"] for parameter in result["parameters"]),
                "peak_bytes": result["peak_bytes"],
            }
        )
        day.say(f"{name}: {result['step_s']:.4f} s a step")
    _write(day.out / "records.csv", rows)


def memory(day: Day) -> None:
    """The allocator's peak beside the plan's sum, ResNet18 of 64 channels, 128 images, two nodes."""
    width = 64 if day.device == "cuda" else 4
    sizes = ("--workload=cifar10", f"--workload-set=width={width}", "--batch-size=128", "--nodes=2")

    def row_of(method: str) -> dict[str, Any]:
        run = day.istbench(
            *("run", "--json", f"--method={method}", *sizes, "--steps=6", f"--device={day.device}"),
            *("--out", day.scratch / "memory"),
            tf32=True,  # other convolutions need 200 MB of workspace
        )
        found = {"why": run.why} if run.code else {"measured_bytes": run.result["peak_memory_bytes_per_node"]}
        return {"method": method, "sizes": " ".join(sizes), **found}

    methods = [method for method in day.methods if method not in _SPLIT]
    with ThreadPoolExecutor(min(day.jobs, 8)) as pool:
        _write(day.out / "memory.csv", list(pool.map(row_of, methods)))


def plans(day: Day) -> None:
    """The sums of `istbench plan` beside the measured memory. Needs no GPU."""
    with (day.out / "memory.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        cell = (f"--method={row['method']}", *row["sizes"].split())
        planned = day.istbench("plan", "--json", *cell, "--cluster=p3.2xlarge").result["memory_bytes_per_node"]
        if row.get("measured_bytes"):
            row["over_plan"] = round(int(row["measured_bytes"]) / planned["total"], 3)
        row.update(planned)
    _write(day.out / "memory.csv", rows)


def curves(day: Day) -> None:
    """ResNet18 on CIFAR-10 by three methods, each for a third of the minutes left."""
    if day.cifar10 is None:
        day.say("curves: no --cifar10, so none")
        return
    width = 64 if day.device == "cuda" else 4
    rows = []
    for number, method in enumerate(_CURVES):
        share_s = (day.left_s - 5) / (len(_CURVES) - number)
        name, *settings = method.split()
        ended = day.istbench(
            *("run", "--json", "--workload=cifar10", f"--workload-set=width={width}", f"--data={day.cifar10}"),
            *(f"--method={name}", *(f"--set={setting}" for setting in settings), "--set=lr=0.05", "--nodes=2"),
            *("--batch-size=128", "--channels-last", f"--device={day.device}", "--out", day.out / "curves"),
            *("--epochs=200", "--eval-every=4s", f"--max-seconds={max(2.0, share_s - 30):.0f}"),
            limit_s=share_s,
            tf32=True,
        )
        if ended.code:
            rows.append({"method": method, "why": ended.why})
            continue
        result = ended.result
        rows.append(
            {
                "method": method,
                "accuracy": result["final"]["accuracy"],
                "steps": result["steps"],
                "train_s": round(result["train_s"], 1),
                "wall_s": round(result["wall_s"], 1),
                "bytes_sent_per_node": result["bytes_sent_per_node"],
                "peak_memory_bytes": result["peak_memory_bytes_per_node"],
            }
        )
        day.say(f"{method}: accuracy {result['final']['accuracy']:.3f} after {result['train_s']:.0f} s")
    _write(day.out / "curves.csv", rows)
    for checkpoint in day.out.glob("curves/runs/*/checkpoint"):
        shutil.rmtree(checkpoint)


PARTS: dict[str, tuple[Callable[[Day], None], float]] = {
    "doctor": (doctor, 0.08),
    "first": (first, 0.05),
    "records": (records, 0.34),
    "identities": (identities, 0.23),
    "memory": (memory, 0.14),
    "kills": (kills, 0.35),
    "curves": (curves, 1.0),
    "compare": (compare, 1.0),
    "plans": (plans, 1.0),
}
"""Parts by name, and the largest share of the day's minutes that each takes."""
_AFTERWARDS = ("compare", "plans")


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows as CSV, with the columns of all of them."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _install(wheels: Path, scratch: Path) -> None:
    """Install the wheels into a folder of their own, which this process and its commands then search first."""
    site = scratch / "site"
    words = (
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
        site,
        *sorted(wheels.glob("*.whl")),
    )
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    sys.path.insert(0, str(site))


def _arguments(words: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--parts", default=",".join(part for part in PARTS if part not in _AFTERWARDS))
    parser.add_argument("--methods", help="default: all")
    parser.add_argument("--most-nodes", type=int, default=4, help="of the cells of identities")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) * 3 // 4), help="runs at a time")
    parser.add_argument("--cifar10", type=Path, help="folder of the data, in a layout of docs/images.md")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--out", type=Path, help="new folder; default: a temporary one, deleted at the end")
    return parser.parse_args(None if words is None else list(words))


def main() -> None:
    asked = _arguments()
    ends = time.monotonic() + 60 * asked.minutes
    if unknown := set(asked.parts.split(",")) - set(PARTS):
        raise SystemExit(f"--parts {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as scratch:
        out = asked.out or Path(scratch, "out")
        out.mkdir(parents=True, exist_ok=True)
        if asked.wheels:
            _install(asked.wheels, Path(scratch))
        listed = subprocess.run(
            [sys.executable, "-m", "istbench", "list", "methods"], capture_output=True, text=True
        )
        methods = (
            asked.methods.split(",") if asked.methods else [line.split()[0] for line in listed.stdout.splitlines()]
        )
        methods.sort(key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
        if not methods:
            raise SystemExit(f"istbench lists no methods: {listed.stderr}")
        day = Day(
            device=asked.device,
            methods=methods,
            most_nodes=asked.most_nodes,
            jobs=asked.jobs,
            out=out,
            scratch=Path(scratch),
            cifar10=asked.cifar10,
            ends=ends,
        )
        describe_machine(day)
        minutes = []
        for part in asked.parts.split(","):
            if day.left_s < 20:
                day.say(f"{part}: no time left")
                continue
            day.say(part)
            started = time.monotonic()
            do, share = PARTS[part]
            do(dataclasses.replace(day, ends=min(ends, started + share * 60 * asked.minutes)))
            minutes.append({"part": part, "seconds": round(time.monotonic() - started, 1)})
        _write(out / "seconds.csv", minutes)
        for file in sorted(out.glob("*.csv")):
            print(f"## {file.stem}\n{file.read_text()}")


if __name__ == "__main__":
    main()
