"""On a host: programs of istbench that measure something in processes of their own, and print it as JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from istbench.launch.hosts.action import Agent


def answers_of(
    agent: Agent, module: str, words: Sequence[str], environments: Sequence[Mapping[str, str]], limit_s: float
) -> list[Any]:
    """What `python -m module words` prints last in each of `environments`, all at once.

    Raises:
        OSError: with the last line of the first that fails. TimeoutExpired: after `limit_s` seconds.
    """
    processes = []
    for environment in environments:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        agent.undo.append(process.kill)
        processes.append(process)
    found = []
    for process in processes:
        out, error = process.communicate(timeout=limit_s)
        if process.returncode:
            raise OSError((error.strip().splitlines() or ["it ended without a word"])[-1])
        found.append(json.loads(out.rstrip().rpartition("\n")[2]))  # NCCL_DEBUG has NCCL print lines before it
    return found
