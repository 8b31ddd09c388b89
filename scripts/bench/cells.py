"""`istbench run` from a script: one cell in a fresh results directory, its JSON back."""

import json
import subprocess
import sys
import tempfile
from typing import Any


def run_cell(*arguments: object) -> dict[str, Any]:
    """The result of `istbench run` with these arguments."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "istbench", "run", "--json", "--out", out, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
