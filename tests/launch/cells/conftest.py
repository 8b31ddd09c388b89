import pytest


@pytest.fixture
def scratch(tmp_path):
    """An empty scratch directory of a run."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"
