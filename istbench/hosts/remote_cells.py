"""On a host: which cells a run there would be of, found without training."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from istbench import machine
from istbench.hosts.agent import Agent
from istbench.hosts.wheel import source_key


def source_key_there(_agent: Agent, _question: Mapping[str, Any]) -> str:
    """`source_key` of the istbench on this host."""
    return source_key()


def usable_cores(_agent: Agent, _asked: Mapping[str, Any]) -> int:
    """The cores that a run on this host may keep busy."""
    return machine.cores()


def name_cells(agent: Agent, asked: Mapping[str, Any]) -> list[str | None]:
    """The names of `cells`, as the module named `by` finds them; None for each where that takes over `within_s`.

    That module runs in a program of its own: it imports torch, and this program stays small beside a run.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", asked["by"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    agent.undo.append(process.kill)
    try:
        printed, _ = process.communicate(json.dumps(asked["cells"]), timeout=asked["within_s"])
        names: list[str | None] = json.loads(printed)
    except (subprocess.TimeoutExpired, ValueError):
        return [None] * len(asked["cells"])
    finally:
        process.kill()
        process.wait()
    return names
