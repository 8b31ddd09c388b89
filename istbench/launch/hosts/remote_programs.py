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
from istbench.base.options.numbers import Count, Natural, Seconds
from istbench.base.options.texts import Message
from istbench.cluster.collective import Backend
from istbench.launch.hosts.agent_program import Agent

LIMIT_S = 120.0
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


def program(
    *words: str,
    limit_s: float = LIMIT_S,
    environments: Sequence[Mapping[str, str]] = ({},),
    typed: Any = None,
) -> dict[str, Any]:
    """The arguments of `run_programs`; typed: a value for JSON on the standard input."""
    return {"words": words, "limit_s": limit_s, "environments": environments, "typed": typed}


def run_programs(agent: Agent, question: Mapping[str, Any]) -> list[Any]:
    """On a host: the answers of `answer_program` with some `words` in each of `environments`, all at once."""
    content = json.dumps(question["typed"]).encode()
    return answers_of(agent, _PROGRAM, question["words"], question["environments"], question["limit_s"], content)


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
