"""On a host: the names of cells, computed without training, and the key of the code of istbench."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import istbench
from istbench.launch.hosts.action import Agent


def source_key() -> str:
    """Identifies the code of this istbench: a hash of its files."""
    folder, digest = Path(istbench.__file__).parent, hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


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
