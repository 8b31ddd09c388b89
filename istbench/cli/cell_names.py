"""Finds the names of cells as `istbench run` does, without training. `hosts.remote_programs` runs this on a host.

`python -m istbench.cli.cell_names` reads a JSON list of cells from standard input. It prints a JSON list of their
names, with null for each cell that cannot run.
"""

import json
import os
import sys
from collections.abc import Sequence

from istbench.cli.detached_job import request_of
from istbench.launch.cells.resolve import prepare_cell


def cell_name(words: Sequence[str], nodes: int) -> str | None:
    """The name of the cell that the command `words` requests on this number of `nodes`; None if it cannot run."""
    try:
        return prepare_cell(request_of(words, nodes), lambda *_: None, here=1).name
    except Exception:  # the run itself reports the error
        return None


def main() -> None:
    """Answer the request on standard input. Output of plug-ins goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        json.dump([cell_name(**asked) for asked in json.load(sys.stdin)], answers)


if __name__ == "__main__":
    main()
