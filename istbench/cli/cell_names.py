"""Names of cells, found as `istbench run` does and without training; a run on other hosts asks for them.

`python -m istbench.cli.cell_names` reads a JSON list of cells from standard input, as `hosts.finished` asks
for them. It prints a JSON list of their names, null for each that cannot run.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from istbench.cells.resolve import prepare_cell
from istbench.cli.detached_job import request_of


def cell_name(words: Sequence[str], nodes: int, here: int, threads: int) -> str | None:
    """The name of the cell that `words` of istbench ask for, on so many `nodes`; None where it cannot run.

    Args:
        here: nodes on this machine. threads: of a node, where the words do not say.
    """
    try:
        request = request_of(words, nodes)
        request = dataclasses.replace(request, threads=request.threads or threads)
        return prepare_cell(request, lambda *_: None, here=here).name
    except Exception:  # the run that follows says what it is
        return None


def main() -> None:
    """Answer what standard input asks; what plug-ins print is no part of it."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        json.dump([cell_name(**asked) for asked in json.load(sys.stdin)], answers)


if __name__ == "__main__":
    main()
