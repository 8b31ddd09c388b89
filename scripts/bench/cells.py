"""`istbench run` from a script: runs one cell in a new results directory and returns its JSON."""

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from istbench.cli import main


def run_cell(*arguments: object, out: Path | None = None) -> dict[str, Any]:
    """The result of `istbench run` with these arguments. `out` keeps its results directory.

    The command runs in this process, and its workers in others, as always. So they share one fork server.
    """
    printed, said = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed), redirect_stderr(said):
        try:
            main(["run", "--json", "--out", str(out or folder), *map(str, arguments)])
        except SystemExit as ended:
            if ended.code:
                raise SystemExit(said.getvalue()) from None
    result: dict[str, Any] = json.loads(printed.getvalue())
    return result
