"""On a host: programs of istbench that measure something in processes of their own, and print it as JSON."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

from istbench.launch.hosts.action import Agent

_POLL_S = 0.05


def answers_of(
    agent: Agent, module: str, words: Sequence[str], environments: Sequence[Mapping[str, str]], limit_s: float
) -> list[Any]:
    """What `python -m module words` prints last in each of `environments`, all at once.

    No process outlives this call.

    Raises:
        OSError: with the last line of the first that fails, or after `limit_s` seconds.
    """
    command = [sys.executable, "-P", "-m", module, *words]
    processes, outputs = [], []
    with ExitStack() as undo:
        for environment in environments:
            # Files, because a process that fills a pipe waits for its reader.
            out, error = (undo.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=error, env={**os.environ, **environment}
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
