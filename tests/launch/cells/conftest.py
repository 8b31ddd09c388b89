import pytest
from toy_cell import HEADER

from istbench.results.store import RunDirectory


@pytest.fixture
def scratch(tmp_path):
    """An empty scratch directory of a run."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def run(tmp_path):
    """The run directory of `HEADER`."""
    return RunDirectory.of(tmp_path, HEADER.cell)
