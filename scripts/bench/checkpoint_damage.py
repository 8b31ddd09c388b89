"""Damage to files of an interrupted run, and parts of other runs in their places: the end of the next command.

python scripts/bench/checkpoint_damage.py --only "one bit"    # to try it

A run is killed after its second checkpoint. Each row changes a copy of it and gives the command again. The command
refuses in one line, or ends in the weights and evaluations of a run that nothing disturbed; else the row is SILENT.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cells import run_cell
from killed_runs import PLUGIN, SlowRun, curve_of

from istbench.results.events import Resume
from istbench.results.store import RunDirectory

_SLOW_S = 0.05
_STEPS = 120
_TOY = ["--workload", "slow", "--method", "ist", "--nodes", "2", "--seed", "0", "--set", "momentum=0.9"]
_ALL = ["--threads", "1", "--plugin", str(PLUGIN), f"--steps={_STEPS}", "--eval-every=10", "--checkpoint-every=0",
        "--timeout=30"]  # fmt: skip
Change = Callable[[Path], object]


def _with(*changes: str) -> list[str]:
    """The words of the first run with other values of options: pairs of a word and the word after it."""
    words = list(_TOY)
    for flag, value in zip(changes[::2], changes[1::2], strict=True):
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    return [*words, *_ALL]


OTHERS = {
    "seed": _with("--seed", "1"),
    "method": _with("--method", "local_sgd"),
    "width": _with("--workload-set", "hidden=32"),
    "nodes": _with("--nodes", "3"),
    "option": _with("--set", "momentum=0.5"),
    "workload": [
        *_with("--workload", "slow_wide", "--set", "optimizer=sgd"),
        *(f"--workload-set={size}" for size in ("hidden=16", "features=40", "labels=60", "points=4096")),
    ],
    "results": _with(),
}
"""Other runs, by what tells them from the first; `results` is the same cell in another results directory."""


def steps_of(run: Path) -> list[Path]:
    """The published steps, the newer first."""
    found = [path.parent for path in run.glob("checkpoint/*/manifest.json")]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def flip(path: Path, *places: int) -> None:
    """Flip a bit of each byte at `places`."""
    content = bytearray(path.read_bytes())
    for at in places:
        content[at] ^= 1
    path.write_bytes(content)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace the content of `path`."""
    path.write_bytes(change(path.read_bytes()))


def exchange(one: Path, other: Path) -> None:
    """Exchange the content of two files."""
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def exchange_steps(run: Path) -> None:
    """Exchange the content of the two steps."""
    newer, older = steps_of(run)
    for path in newer.iterdir():
        exchange(path, older / path.name)


def instead(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the place of `path`."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)


def moved_behind_link(path: Path) -> None:
    """Move `path` to another place, and leave a link to it."""
    kept = path.parents[3] / f"kept-{path.name}"
    path.rename(kept)
    path.symlink_to(kept)


def reseal(run: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change the manifest of the newer step, and every digest that covers it."""
    path = steps_of(run)[0] / "manifest.json"
    contents = json.loads(path.read_bytes())["contents"]
    change(contents)
    text = json.dumps(contents, separators=(",", ":"))
    path.write_text(f'{{"sha256":"{hashlib.sha256(text.encode()).hexdigest()}","contents":{text}}}')
    latest = run / "checkpoint" / "latest.json"
    pointer = json.loads(latest.read_bytes())
    pointer["manifest"] = hashlib.sha256(path.read_bytes()).hexdigest()
    latest.write_text(json.dumps(pointer))


def pointer(run: Path, **changed: object) -> None:
    """Change fields of `latest.json`."""
    path = run / "checkpoint" / "latest.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changed}))


def header(run: Path, **changed: object) -> None:
    """Change fields of the header."""
    path = run / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changed}))


def lines(run: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of the evaluations up to the newer step, which begin after that of the start."""
    rewrite(run / "events.jsonl", lambda content: b"".join(change(content.splitlines(keepends=True))))


def damages() -> dict[str, Change]:
    """Changes of a run directory, by name."""

    def tensors(run: Path) -> Path:
        return steps_of(run)[0] / "rank-1.safetensors"

    def text(run: Path) -> Path:
        return steps_of(run)[0] / "rank-1.json"

    def manifest(run: Path) -> Path:
        return steps_of(run)[0] / "manifest.json"

    def latest(run: Path) -> Path:
        return run / "checkpoint" / "latest.json"

    return {
        "nothing": lambda run: None,
        "tensors cut in half": lambda run: rewrite(tensors(run), lambda found: found[: len(found) // 2]),
        "tensors empty": lambda run: tensors(run).write_bytes(b""),
        "tensors missing": lambda run: tensors(run).unlink(),
        "tensors with one bit flipped": lambda run: flip(tensors(run), -1),
        "tensors with 64 bytes flipped": lambda run: flip(tensors(run), *range(-64, 0)),
        "tensors with another length of their header": lambda run: flip(tensors(run), 1),
        "tensors longer": lambda run: rewrite(tensors(run), lambda found: found + bytes(100)),
        "tensors of zeros": lambda run: rewrite(tensors(run), lambda found: bytes(len(found))),
        "tensors of the other rank": lambda run: exchange(tensors(run), steps_of(run)[0] / "rank-0.safetensors"),
        "tensors of the step before": lambda run: shutil.copy(
            steps_of(run)[1] / "rank-1.safetensors", tensors(run)
        ),
        "tensors a directory": lambda run: instead(tensors(run), Path.mkdir),
        "tensors a pipe": lambda run: instead(tensors(run), os.mkfifo),
        "tensors a dangling link": lambda run: instead(tensors(run), lambda path: path.symlink_to("nowhere")),
        "tensors behind a link": lambda run: moved_behind_link(tensors(run)),
        "state cut in half": lambda run: rewrite(text(run), lambda found: found[: len(found) // 2]),
        "state no JSON": lambda run: text(run).write_text("{"),
        "state a list": lambda run: text(run).write_text("[]"),
        "state with one digit changed": lambda run: rewrite(text(run), lambda found: found.replace(b"1", b"2", 1)),
        "state of the other rank": lambda run: exchange(text(run), steps_of(run)[0] / "rank-0.json"),
        "manifest missing": lambda run: manifest(run).unlink(),
        "manifest empty": lambda run: manifest(run).write_bytes(b""),
        "manifest cut in half": lambda run: rewrite(manifest(run), lambda found: found[: len(found) // 2]),
        "manifest with one digit changed": lambda run: rewrite(
            manifest(run), lambda found: found.replace(b'bytes":1', b'bytes":2', 1).replace(b"_s", b"-s", 1)
        ),
        "manifest of the step before": lambda run: shutil.copy(steps_of(run)[1] / "manifest.json", manifest(run)),
        "manifest sealed anew without a rank": lambda run: reseal(
            run,
            lambda contents: contents["files"].pop("rank-1.json"),  # type: ignore[attr-defined]
        ),
        "manifest sealed anew with another step": lambda run: reseal(
            run,
            lambda contents: contents["totals"].update(step=7),  # type: ignore[attr-defined]
        ),
        "latest.json missing": lambda run: latest(run).unlink(),
        "latest.json no JSON": lambda run: latest(run).write_text("{"),
        "latest.json names a step that is nowhere": lambda run: pointer(run, step=_STEPS - 5),
        "latest.json names no manifest": lambda run: pointer(run, manifest="0" * 64),
        "files of a rank more": lambda run: [
            shutil.copy(path, path.with_name(path.name.replace("1", "2"))) for path in (tensors(run), text(run))
        ],
        "a step beyond the newest": lambda run: shutil.copytree(
            steps_of(run)[0], run / "checkpoint" / str(_STEPS - 5)
        ),
        "newer step missing": lambda run: shutil.rmtree(steps_of(run)[0]),
        "newer step empty": lambda run: instead(steps_of(run)[0], Path.mkdir),
        "newer step behind a link": lambda run: moved_behind_link(steps_of(run)[0]),
        "steps exchanged": exchange_steps,
        "both steps damaged": lambda run: [(step / "rank-1.json").write_text("{") for step in steps_of(run)],
        "checkpoint missing": lambda run: shutil.rmtree(run / "checkpoint"),
        "checkpoint a file": lambda run: instead(run / "checkpoint", Path.touch),
        "header missing": lambda run: (run / "run.json").unlink(),
        "header empty": lambda run: (run / "run.json").write_bytes(b""),
        "header cut in half": lambda run: rewrite(run / "run.json", lambda found: found[: len(found) // 2]),
        "header of another schema": lambda run: header(run, schema=99),
        "header of another timing rule": lambda run: header(run, timing_rule=1),
        "header failed": lambda run: header(run, status="failed", error="why"),
        "header done": lambda run: header(run, status="done"),
        "events missing": lambda run: (run / "events.jsonl").unlink(),
        "events empty": lambda run: (run / "events.jsonl").write_bytes(b""),
        "events without the first evaluation": lambda run: lines(run, lambda found: [*found[:1], *found[2:]]),
        "events without the second evaluation": lambda run: lines(run, lambda found: [*found[:2], *found[3:]]),
        "events without all but the start": lambda run: lines(run, lambda found: found[:1]),
        "events with another metric": lambda run: lines(
            run, lambda found: [*found[:1], re.sub(rb'"accuracy":[0-9.]+', b'"accuracy":0.5', found[1]), *found[2:]]
        ),
        "events with a broken line": lambda run: lines(run, lambda found: [*found[:1], b"{\n", *found[1:]]),
        "events with a torn last line": lambda run: lines(run, lambda found: [*found, b'{"event":"evalu']),
    }


def _newer(run: Path) -> str:
    return str(json.loads((run / "checkpoint" / "latest.json").read_bytes())["step"])


def swaps(kept: Path) -> dict[str, Change]:
    """Parts of other runs, `kept` by name, in the places of the first run's."""

    def part(name: str, what: str) -> Change:
        def change(run: Path) -> None:
            (other,) = (kept / name).glob("runs/*")
            source, target = other / what, run / what
            if what == "newer step":
                source, target = steps_of(other)[0], run / "checkpoint" / steps_of(other)[0].name
                pointer(run, **json.loads((other / "checkpoint" / "latest.json").read_bytes()))
            instead(target, lambda path: None) if target.exists() else None
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)

        return change

    wholes = {"": "run directory", "checkpoint": "checkpoint", "newer step": "newer step", "run.json": "header",
              "events.jsonl": "events"}  # fmt: skip
    return {
        f"{words} of another {name}": part(name, what)
        for name in OTHERS
        for what, words in wholes.items()
        if not (name == "results" and what in ("", "run.json"))
    }


@dataclass(frozen=True)
class Study:
    """The first run, killed, in results directory `killed`, and the `digest` and `curve` that it must end in."""

    killed: Path
    words: list[str]
    digest: str
    curve: list[tuple[int, float | None]]

    def outcome(self, change: Change, folder: Path) -> tuple[str, str]:
        """The outcome of the same command after `change`, and the line that refuses or names damage."""
        shutil.copytree(self.killed, folder, symlinks=True)
        (run,) = folder.glob("runs/*")
        change(run)
        try:
            digest = run_cell(*self.words, out=folder)["weights_sha256"]
        except SystemExit as refused:
            said = str(refused).strip().splitlines()
            return "refused", (said[-1] if said else "")
        except Exception:
            return "TRACEBACK", traceback.format_exc().splitlines()[-1]
        resumed = [event for event in RunDirectory(run).events() if isinstance(event, Resume)]
        damage = next((event.damage for event in resumed if event.damage), "")
        at = resumed[-1].step if resumed else 0
        if digest != self.digest:
            return f"SILENT from {at}: other weights", damage
        found = curve_of(run)
        if found != self.curve:
            return f"SILENT from {at}: {len(found)} of {len(self.curve)} evaluations, or others", damage
        return ("from the start" if at < 1 else f"from step {at}"), damage


def killed_run(words: list[str], out: Path) -> None:
    """Start a slow run and kill it after its second checkpoint."""
    slow = SlowRun(words, out, _SLOW_S)
    slow.wait_for(lambda run: len(steps_of(run)) > 1 and _names_newest(run))
    slow.kill(slow.process.pid)


def _names_newest(run: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return _newer(run) == steps_of(run)[0].name
    return False


def ways(study: Study, kept: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """The last line of each way to give the command, with the checkpoint of another seed in place."""
    (other,) = (kept / "seed").glob("runs/*")
    suite = folder / "suite.toml"
    method = '{method = "ist", momentum = 0.9}'
    suite.write_text(
        f'workload = "slow"\nmethods = [{method}]\nnodes = [2]\nseeds = 1\n'
        f"[run]\nsteps = {_STEPS}\neval_every = 10\n"
    )
    machine = ["--threads", "1", "--plugin", str(PLUGIN), "--checkpoint-every=0"]
    run = ["-m", "istbench", "run", *study.words]
    commands = {
        "run": run,
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node=2", *run],
        "run --slurm executor=local": [*run, "--slurm", "executor=local"],
        "compare": ["-m", "istbench", "compare", str(suite), *machine],
    }
    for number, (name, words) in enumerate(commands.items()):
        out = folder / f"way{number}"
        shutil.copytree(study.killed, out)
        (target,) = out.glob("runs/*")
        instead(target / "checkpoint", lambda path: shutil.copytree(other / "checkpoint", path))
        done = subprocess.run(
            [sys.executable, *words, "--out", str(out)], capture_output=True, text=True, check=False
        )
        said = [line for line in done.stderr.splitlines() if "istbench:" in line] or ["trained"]
        yield name, f"status {done.returncode}: {said[-1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="only rows that match this expression")
    parser.add_argument("--ways", action="store_true", help="also give the command under torchrun and as a job")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="istbench-damage-") as name:
        folder = Path(name)
        every = {**damages(), **swaps(folder / "kept")}
        chosen = {row: change for row, change in every.items() if re.search(asked.only, row)}
        words = _with()
        killed_run(words, folder / "killed")
        for other, its in OTHERS.items():
            if asked.ways or any(row.endswith(f"another {other}") for row in chosen):
                killed_run(its, folder / "kept" / other)
        digest = str(run_cell(*words, out=folder / "whole")["weights_sha256"])
        (whole,) = (folder / "whole").glob("runs/*")
        study = Study(folder / "killed", words, digest, curve_of(whole))
        print("| change | outcome | line |\n| :--- | :--- | :--- |", flush=True)
        counts: Counter[str] = Counter()
        for number, (row, change) in enumerate(chosen.items()):
            outcome, line = study.outcome(change, folder / f"row{number}")
            counts[re.sub(r" from \d+.*| step \d+", "", outcome)] += 1
            print(f"| {row} | {outcome} | {line.replace(str(folder), '')} |", flush=True)
        print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
        if asked.ways:
            for way, said in ways(study, folder / "kept", folder):
                print(f"{way}: {said.replace(str(folder), '')}", flush=True)
    return int(any(outcome in counts for outcome in ("SILENT", "TRACEBACK")))


if __name__ == "__main__":
    raise SystemExit(main())
