"""Cells that run detached: `python -m istbench.cli.detached_job FOLDER` trains those of the job in FOLDER."""

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


if __name__ == "__main__":
    work(Path(sys.argv[1]), request_of)
