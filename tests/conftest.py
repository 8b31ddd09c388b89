"""Shared set-up of the tests."""

import fcntl
import functools
import gc
import multiprocessing.util
import os
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

gc.disable()  # until all tests are imported: a fifth of that time would be a search for garbage

import pytest  # noqa: E402
import ssh_hosts  # noqa: E402
import warm  # noqa: E402
from hypothesis import settings  # noqa: E402

from istbench.launch.hosts.install import build_wheel  # noqa: E402
from istbench.launch.processes import local  # noqa: E402

# From 3.14 on, Python gives its fork server arguments and a key that `warm_server` does not know.
ssh_hosts.WARM = WARM = sys.version_info < (3, 14)

# What most of the tests' own functions on nodes import beyond what a run's workers do.
FOR_TESTS = ["pytest", "quick_measurements", "istbench.studies.conformance"]
FOR_TESTS += [point.module for point in entry_points(group="istbench.methods")]

LONG_FILES = {"scripts/test_programs", "cli/test_run"}
"""Files that one worker would be busy with when all others have ended. What a module shares, each worker makes."""
# Workers of pytest-xdist take these files first, the slowest before all others. So none has a long file left at the
# end. Two files that make labs are apart: a machine has one lab at a time.
SLOW_FILES = [
    "scripts/test_programs", "launch/engines/test_engines_run", "cli/test_run_on_hosts",
    "cli/test_restarts_on_hosts_over_ssh",
    "plan/recording/test_scripts", "scripts/test_hostile_results", "studies/conformance/test_check",
    "cli/test_torchrun_cells", "node/test_stopping", "cli/test_run", "cli/test_silent_runs",
    "identities/test_resharded", "cli/test_reproduce_command", "identities/test_grouped",
    "identities/test_partial_deals",
    "cli/test_restarted_runs", "node/test_stalls",
    "cli/test_stopped_runs", "cli/test_torchrun", "launch/torchrun/test_strangers", "launch/hosts/test_ssh_install",
    "fabric/test_counted_bytes", "identities/test_streaming_ist", "identities/test_convolutions",
    "launch/hosts/test_ssh_run", "launch/hosts/test_ssh_detach", "launch/hosts/test_ssh_files",
    "cli/test_lab_command", "plan/test_redeal", "node/test_node_seconds", "cli/test_streams",
    "identities/test_served", "launch/lab/test_lab", "docs/test_container", "test_from_outside",
]  # fmt: skip

# Tests in these folders and with these fixtures start processes. Elsewhere, a file or a test has the mark itself.
PROCESS_FOLDERS = ["identities"]
PROCESS_FIXTURES = {"browser", "hosts", "only_lab"}
STARTS = [(subprocess.Popen, "__init__"), (BaseProcess, "start")]
STARTS += [(os, name) for name in ("fork", "forkpty", "posix_spawn")]
"""What starts a process in Python. A hook of all its audit events would take a hundredth of the tests' time."""

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait for one another keep no core busy
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")  # else it starts ten Pythons to try what the processor can
if "PYTEST_XDIST_WORKER" in os.environ:  # threads of tests side by side would wait for one another's cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples every time: a failure is due to the change at hand. --hypothesis-profile=default tries others.
# A busy machine makes an example slow, not wrong. Tests of garbage have a limit of their own.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


def pytest_configure(config):
    """Keep the order of files, instead of taking those with the most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give workers of pytest-xdist a file at a time, or a test at a time of `LONG_FILES`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return nodeid if file.removeprefix("tests/").removesuffix(".py") in LONG_FILES else file

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests that start processes, and put `SLOW_FILES` first, in their order."""
    here = Path(__file__).parent
    folders = [here / name for name in PROCESS_FOLDERS]
    for item in items:
        if PROCESS_FIXTURES.intersection(item.fixturenames) or any(map(item.path.is_relative_to, folders)):
            item.add_marker("processes")
    order = {here / f"{name}.py": place for place, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish():
    """Spare the garbage collector torch and thousands of tests, which stay until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # a search for each 700 new objects would take a hundredth of the tests' time
    gc.enable()


_HARMLESS = ("git", "fc-list", "/sbin/ldconfig", "uname")
"""A run's header has the commit and the system; matplotlib lists a new machine's fonts; torch finds libraries."""


class _Unmarked:
    """Fails a test that starts a process without the mark `processes`."""

    def __init__(self):
        self.runs = False
        for owner, name in STARTS:
            setattr(owner, name, self._looking(getattr(owner, name)))

    def _looking(self, start):
        @functools.wraps(start)
        def look_and_start(*words, **named):
            command = words[1] if words[1:] else None
            if self.runs and not (isinstance(command, list) and command[0] in _HARMLESS):
                what = f"{start.__qualname__} {command or named or words}"
                pytest.fail(f"it starts a process, so it needs pytest.mark.processes: {what}", pytrace=False)
            return start(*words, **named)

        return look_and_start


_unmarked = _Unmarked()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    _unmarked.runs = item.get_closest_marker("processes") is None
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "torch" and find_spec("torch") is None:
            pytest.skip("no torch")
        raise
    finally:
        _unmarked.runs = False


if find_spec("torch") is None:  # `.ci/run` tests other interpreters without it

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(collector):
        """Skip a file that imports torch."""
        report = yield
        if report.failed and "No module named 'torch" in str(report.longrepr):
            report.outcome, report.longrepr = "skipped", (str(collector.path), 1, "Skipped: no torch")
        return report


@pytest.fixture(scope="session", autouse=True)
def fork_server(request):
    """Start importing torch for worker processes while the first tests run, if a test needs them."""
    if not any(item.get_closest_marker("processes") for item in request.session.items):
        return
    local.PRELOADED += FOR_TESTS
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # it has no sys.path of pytest's
        if WARM:
            warm.server_address()
            multiprocessing.util.spawnv_passfds = warm.start_helper
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
def warm_commands(monkeypatch):
    """Commands of istbench that this process starts begin with torch imported."""
    if WARM:
        warm.server_address()
        monkeypatch.setattr(subprocess.Popen, "_execute_child", warm.execute_child)


@pytest.fixture
def only_lab():
    """Be the only test that makes a lab, or looks for what one needs: a machine has one at a time."""
    with Path(tempfile.gettempdir(), f"istbench-tests-lab-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A wheel of this checkout. Workers of pytest-xdist share it: the first that needs it builds it."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = list(folder.glob("*/*.whl"))
        return found[0] if found else build_wheel(Path(tempfile.mkdtemp(dir=folder)))


@pytest.fixture
def results(tmp_path):
    """A results directory to fill with fake runs."""
    return tmp_path / "results"
