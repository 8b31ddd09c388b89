"""The command as most of its tests call it."""

import pytest

from istbench.cli import main


@pytest.fixture
def istbench(capsys):
    """Runs `istbench ...` in this process, its nodes in others; returns (status, stdout, stderr)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run
