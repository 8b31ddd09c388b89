"""On a host: programs of istbench in processes of their own, which print JSON; and the key of istbench.

They import torch, and the agent should stay small beside a run.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import msgspec

import istbench
from istbench.base.machine import HOST, cores
from istbench.base.options.numbers import Count, Natural, Seconds
from istbench.base.options.texts import Message
from istbench.cluster.collective import Backend
from istbench.launch.hosts.agent_program import Agent
from istbench.launch.processes.world import World

LIMIT_S = 120.0
_SPEED_S = 240.0
_POLL_S = 0.05
_PROGRAM = "istbench.launch.hosts.answer_program"


class BusBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """An all-reduce of `bytes` that took `seconds` on all nodes. right: whether its values are the mean."""

    backend: Backend
    nodes: Count
    bytes: Count
    seconds: Seconds
    right: bool

    @property
    def bits_per_s(self) -> float:
        """Bits each node sends in a second: bandwidth of a link that carries a ring all-reduce in this time."""
        return 8 * self.bytes * 2 * (self.nodes - 1) / self.nodes / self.seconds


class HostGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The number of GPUs that torch has, and the line of `broken_copies` between them."""

    count: Natural
    broken: Message


def source_key() -> str:
    """Identifies this istbench and what it needs alike on all hosts: a hash of its files, and of two versions."""
    try:
        torch = version("torch").partition("+")[0]
    except PackageNotFoundError:
        torch = "none"
    folder, digest = Path(istbench.__file__).parent, hashlib.sha256(f"{sys.version_info[:2]} {torch}".encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def name_cells(agent: Agent, question: Mapping[str, Any]) -> list[str | None]:
    """The names of the requested `cells`; None for each if that takes longer than `within_s`."""
    cells = question["cells"]
    try:
        (names,) = answers_of(agent, _PROGRAM, ["names"], [{}], question["within_s"], json.dumps(cells).encode())
    except (OSError, ValueError):
        return [None] * len(cells)
    return list(names)


def gpus(agent: Agent, _question: Mapping[str, Any]) -> Any:
    """The `HostGpus` of this host."""
    return answers_of(agent, _PROGRAM, ["gpus"], [{}], LIMIT_S)[0]


def speed(agent: Agent, question: Mapping[str, Any]) -> Any:
    """The `MeasuredNode` of the slowest of `slots` processes at once; then the cost of `carrying`, or None."""
    environments = [{"LOCAL_RANK": str(slot)} for slot in range(question["slots"])]
    found = answers_of(agent, _PROGRAM, ["speed", str(question["slots"])], environments, _SPEED_S)
    slowest = {name: value and min(one[name] for one in found) for name, value in found[0].items()}
    return slowest, answers_of(agent, _PROGRAM, ["carrying"], [{}], _SPEED_S)[0] if question["carrying"] else None


def all_reduce(agent: Agent, question: Mapping[str, Any]) -> list[Any]:
    """The `BusBandwidth` that each of `slots` processes measures, whose ranks of `nodes` begin at `rank`."""
    address, port = question["endpoint"]
    size, slots = question["nodes"], question["slots"]
    common = {"TORCH_CPP_LOG_LEVEL": "ERROR", HOST: question["name"]}
    environments = []
    for slot in range(slots):
        rank = question["rank"] + slot
        world = World(rank=rank, size=size, local_rank=slot, local_size=slots, master=address, port=port)
        environments.append({**common, **world.environment(max(1, cores() // slots), question["key"])})
    words = ["all_reduce", question["device"], str(question["seconds"])]
    return answers_of(agent, _PROGRAM, words, environments, LIMIT_S)


def answers_of(
    agent: Agent,
    module: str,
    words: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    limit_s: float,
    given: bytes = b"",
) -> list[Any]:
    """What `python -m module words` prints last in each of `environments`, all at once.

    given: the standard input of each. No process outlives this call.

    Raises:
        OSError: with the last line of the first that fails, or after `limit_s` seconds.
    """
    command = [sys.executable, "-P", "-m", module, *words]
    processes, outputs = [], []
    with ExitStack() as undo:
        for environment in environments:
            # Files, because a process that fills a pipe waits for its reader.
            typed, out, error = (undo.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            typed.write(given)
            typed.seek(0)
            process = subprocess.Popen(
                command, stdin=typed, stdout=out, stderr=error, env={**os.environ, **environment}
            )
            undo.callback(process.wait)
            undo.callback(process.kill)
            agent.undo.append(process.kill)
            processes.append(process)
            outputs.append((out, error))
        until = time.monotonic() + limit_s
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            if time.monotonic() > until:
                raise TimeoutError(f"no result within {limit_s:g} s")
            time.sleep(_POLL_S)
        for code, (_, error) in zip(codes, outputs, strict=True):
            if code:
                raise OSError(_last_line(error) or "it ended without a word")
        return [json.loads(_last_line(out)) for out, _ in outputs]  # NCCL_DEBUG has NCCL print lines before it


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").rstrip().rpartition("\n")[2]
