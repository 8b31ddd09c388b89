"""On a host: the names of cells, computed without training."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from istbench.launch.hosts.action import Agent
from istbench.launch.hosts.wheel import source_key


def source_key_there(_agent: Agent, _question: Mapping[str, Any]) -> str:
    """`source_key` of the istbench on this host."""
    return source_key()


def name_cells(agent: Agent, question: Mapping[str, Any]) -> list[str | None]:
    """The names of `cells` by the module `by`; None for each if that takes longer than `within_s`.

    The module runs in a process of its own: it imports torch, and this process should stay small beside a run.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", question["by"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    agent.undo.append(process.kill)
    try:
        printed, _ = process.communicate(json.dumps(question["cells"]), timeout=question["within_s"])
        names: list[str | None] = json.loads(printed)
    except (subprocess.TimeoutExpired, ValueError):
        return [None] * len(question["cells"])
    finally:
        process.kill()
        process.wait()
    return names
