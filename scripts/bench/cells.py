"""`istbench run` from a script: runs one cell in a new results directory and returns its JSON."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def run_cell(*arguments: object, out: Path | None = None) -> dict[str, Any]:
    """The result of `istbench run` with these arguments. `out` keeps its results directory."""
    with tempfile.TemporaryDirectory() as folder:
        place = str(out or folder)
        command = [sys.executable, "-m", "istbench", "run", "--json", "--out", place, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
