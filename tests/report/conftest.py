"""A results directory to fill with fake runs."""

import pytest


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"
