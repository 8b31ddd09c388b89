"""Shared set-up of the tests."""

import fcntl
import os
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from istbench.processes import local

# What most of the tests' own functions on nodes import beyond what a run's workers do.
FOR_TESTS = ["pytest", "istbench.conformance", *(point.module for point in entry_points(group="istbench.methods"))]

if "PYTEST_XDIST_WORKER" in os.environ:  # threads of tests side by side would wait for one another's cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def fork_server():
    """Start importing torch for worker processes while the first tests run."""
    local.PRELOADED += FOR_TESTS
    local.preload()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """A cache of the tests' own: what a user has prepared neither helps nor harms."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ISTBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def wide_terminal():
    """Lines as wide as titles need, whatever terminal, or none, the tests run in."""
    patch = pytest.MonkeyPatch()
    patch.setenv("COLUMNS", "120")
    yield
    patch.undo()


@pytest.fixture
def only_lab():
    """Be the only test that makes a lab, or looks for what one needs: a machine has one at a time."""
    with Path(tempfile.gettempdir(), f"istbench-tests-lab-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def results(tmp_path):
    """A results directory to fill with fake runs."""
    return tmp_path / "results"
