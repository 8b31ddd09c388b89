"""Runs on other hosts, which read the words of a command as `istbench run` does.

`python -m istbench.cli.on_hosts` reads a JSON list of cells from standard input. It prints a JSON list of their
names, with null for each cell that cannot run. With the word FOLDER it trains the cells of the detached job there.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from istbench.base.options.run import RunRequest
from istbench.cli.run_command import command
from istbench.launch.hosts.detached_job import work


def request_of(words: Sequence[str], nodes: int) -> RunRequest:
    """The request of the istbench command `words`, on this number of `nodes`."""
    with command.make_context("run", list(words[1:])) as context:
        fields = RunRequest.__struct_fields__
        given = {name: value for name, value in context.params.items() if name in fields}
        return RunRequest(**{**given, "nodes": nodes})


def cell_name(words: Sequence[str], nodes: int) -> str | None:
    """The name of the cell that the command `words` requests on this number of `nodes`; None if it cannot run."""
    from istbench.launch.cells.resolve import prepare_cell  # torch, which a detached job does not need

    try:
        return prepare_cell(request_of(words, nodes), lambda *_: None, here=1).name
    except Exception:  # the run itself reports the error
        return None


def print_names() -> None:
    """Answer the request on standard input. Output of plug-ins goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        json.dump([cell_name(**asked) for asked in json.load(sys.stdin)], answers)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(Path(sys.argv[1]), request_of)
    else:
        print_names()
