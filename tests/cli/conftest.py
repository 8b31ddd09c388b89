"""The command as most of its tests call it."""

import pytest
from torchruns import STARTED

from istbench.cli import main


@pytest.fixture(autouse=True)
def none_left():
    """Kill the torchruns that a failed test leaves."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.communicate()


@pytest.fixture
def istbench(capsys):
    """Runs `istbench ...` in this process, its nodes in others; returns (status, stdout, stderr)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run
