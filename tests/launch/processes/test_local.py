"""Workers of this machine: told who they are, watched, and never left behind. Real processes."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import jobs
import pytest
from torch.distributed import TCPStore

from istbench.base.errors import RunFailed, UserError
from istbench.fabric.transport.connections import address_towards
from istbench.launch.processes import local
from istbench.launch.processes.launcher import Job, launch
from istbench.launch.processes.local import LocalLauncher, serve_store
from istbench.launch.processes.on_nodes import on_nodes
from istbench.launch.torchrun.workers import Route

pytestmark = pytest.mark.processes


def is_alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until(condition, within):
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def at_work(folder):
    """Process ids of the workers of `jobs` that have begun, and of their parents."""
    told = [path.read_text().split() for path in folder.glob("*.pids")]
    return {int(worker) for worker, _ in told}, {int(parent) for _, parent in told}


def both_at_work(folder):
    return len(at_work(folder)[0]) == 2


@contextmanager
def launched(target, folder):
    """A process that launches two workers that do `target`, once both are at it."""
    command = [sys.executable, jobs.__file__, target, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert until(lambda: both_at_work(folder) or process.poll() is not None, within=120)
        assert process.poll() is None, process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_workers_are_told_who_they_are(tmp_path):
    job = Job(target=jobs.write_environment, args=(str(tmp_path),), nodes=2, threads=3, logs=tmp_path / "logs")
    launch(LocalLauncher(), job)
    assert (tmp_path / "0").read_text() == "0 0 2 2 127.0.0.1 3 collects garbage"
    assert (tmp_path / "1").read_text() == "1 1 2 2 127.0.0.1 3 collects garbage"


def node_way_to_start_processes(fabric):
    return multiprocessing.get_start_method()


@pytest.mark.skipif(sys.platform != "linux", reason="another way is the default")
def test_processes_of_a_users_loader_find_a_file_that_has_no_place_on_the_path():
    assert on_nodes(node_way_to_start_processes, 1) == ["fork"]


def test_a_worker_that_dies_is_named_with_what_it_said(tmp_path):
    log = tmp_path / "logs/rank-0/stdout.log"
    job = Job(target=jobs.print_and_end, args=(7, str(log)), nodes=2, logs=tmp_path / "logs")
    with pytest.raises(RunFailed, match="^worker 1 ended with exit status 7; its last lines:\n  said on stderr$"):
        launch(LocalLauncher(), job)
    assert log.read_text() == "said on stdout\n"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("sys.exit()", "ended with exit status 0 before its job was done; it printed nothing"),
        ("sys.exit('enough')", "ended with exit status 1; its last lines:\n  enough"),
        ("os._exit(0)", "ended with exit status 0 before its job was done; it printed nothing"),
        ("raise KeyboardInterrupt", "failed: KeyboardInterrupt; its last lines:\n"),
    ],
)
def test_a_worker_that_ends_itself_has_failed_whatever_it_says(tmp_path, how, said):
    job = Job(target=jobs.end_on_rank_1, args=(how,), nodes=2, logs=tmp_path / "logs")
    with pytest.raises(RunFailed) as ended:
        launch(LocalLauncher(), job)
    assert str(ended.value).startswith(f"worker 1 {said}")


def test_a_worker_that_is_killed_is_named(tmp_path):
    job = Job(target=jobs.killed_on_rank_1, args=(signal.SIGKILL,), nodes=2, logs=tmp_path / "logs")
    with pytest.raises(RunFailed, match="^worker 1 was killed by SIGKILL; it printed nothing$"):
        launch(LocalLauncher(), job)


def test_what_a_user_can_mend_comes_from_the_worker_as_it_is(tmp_path):
    job = Job(target=jobs.raise_on_rank_1, args=("no such file; give another",), nodes=2, logs=tmp_path / "logs")
    with pytest.raises(UserError, match="^no such file; give another$"):
        launch(LocalLauncher(), job)


def test_workers_are_ended_by_force_if_need_be_and_ending_twice_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "GRACE_S", 0.5)
    workers = LocalLauncher().start(
        Job(target=jobs.do_not_end_when_asked, args=(str(tmp_path),), nodes=2, logs=tmp_path / "logs")
    )
    try:
        assert until(lambda: both_at_work(tmp_path), within=120)
        processes, _ = at_work(tmp_path)
    finally:
        workers.end()
    assert not any(map(is_alive, processes))
    workers.end()
    workers.wait()


@pytest.mark.usefixtures("warm_commands")
def test_a_signal_to_the_launcher_ends_its_workers(tmp_path):
    with launched("hold_the_interpreter", tmp_path) as launcher:
        launcher.send_signal(signal.SIGTERM)
        said, errors = launcher.communicate(timeout=60)
        assert (said, errors) == ("interrupted by SIGTERM\n", "")
        workers, _ = at_work(tmp_path)
        assert not any(map(is_alive, workers))


@pytest.mark.usefixtures("warm_commands")
def test_workers_that_are_stuck_end_with_a_launcher_that_is_killed(tmp_path):
    with launched("hold_the_interpreter", tmp_path) as launcher:
        launcher.kill()
        launcher.wait()
        workers, fork_server = at_work(tmp_path)
        assert until(lambda: not any(map(is_alive, workers | fork_server)), within=60)


def test_a_loopback_interface_that_is_down_is_one_line_at_once():
    """A network namespace begins with its own loopback interface down."""
    script = """
from istbench.base.errors import UserError
from istbench.launch.processes.local import serve_store
from istbench.launch.processes.place import ThisMachine
try:
    serve_store(ThisMachine())
except UserError as error:
    print(error)
"""
    command = ["unshare", "--net", sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unshare" in ended.stderr:
        pytest.skip("a network namespace cannot be made here: needs root")
    assert ended.stdout.startswith("this machine does not reach its own address 127.0.0.1 (")
    assert ended.stdout.endswith("`ip link set lo up` for the loopback interface)\n")


def test_a_store_is_served_at_an_address_of_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    store = serve_store(Route("::1", "lo"))
    TCPStore("::1", store.port, is_master=False, timeout=timedelta(seconds=20)).set("key", "value")
    assert store.get("key") == b"value"
    assert address_towards("localhost") == "127.0.0.1"


def test_workers_start_under_a_long_tmpdir_and_leave_no_folder(tmp_path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    (tmp_path / "told").mkdir()
    script = f"""
import sys
sys.path.insert(0, {str(Path(jobs.__file__).parent)!r})
import jobs
from pathlib import Path
from istbench.launch.processes.launcher import Job, launch
from istbench.launch.processes.local import LocalLauncher, serve_store
folder = Path({str(tmp_path / "told")!r})
launch(LocalLauncher(), Job(target=jobs.write_environment, args=(str(folder),), nodes=1, logs=folder / "logs"))
"""
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "TMPDIR": str(long)})
    assert (tmp_path / "told" / "0").exists()
    assert not [path for path in long.iterdir() if path.name.startswith(("istbench", "pymp"))]


def test_the_fork_server_imports_the_methods_and_workloads_of_the_cells(tmp_path):
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(jobs.__file__).parent)!r})
import jobs
from istbench.base.options.run import RunRequest
from istbench.launch.processes import local
from istbench.launch.processes.launcher import Job, launch
cells = [("toy", "p3"), ("a plug-in's", "ddp")]
local.preload(RunRequest(workload=workload, method=method, nodes=1) for workload, method in cells)
folder = Path({str(tmp_path)!r})
job = Job(target=jobs.write_modules, args=(folder / "modules",), nodes=1, logs=folder / "logs")
launch(local.LocalLauncher(), job)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    imported = set((tmp_path / "modules").read_text().split())
    assert {"istbench.methods.p3", "istbench.methods.data_parallel", "istbench.workloads.toy"} <= imported
    assert not {"istbench.methods.dslide", "istbench.methods.zero", "istbench.workloads.speech"} & imported


def test_importing_the_launcher_starts_and_opens_nothing():
    script = """
import multiprocessing.forkserver, os, tempfile
before = os.listdir("/dev/fd"), multiprocessing.forkserver._forkserver._preload_modules
import istbench.launch.processes.local
assert before == (os.listdir("/dev/fd"), multiprocessing.forkserver._forkserver._preload_modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_workers_find_a_function_of_a_script(tmp_path):
    script = tmp_path / "measured.py"
    script.write_text(
        "from istbench.launch.processes.on_nodes import on_nodes\n"
        "def rank(fabric):\n    return fabric.rank\n"
        'if __name__ == "__main__":\n    print(on_nodes(rank, 2))\n'
    )
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert shown.stdout == "[0, 1]\n", shown.stderr
