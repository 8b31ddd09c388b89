"""The sections of engine files as they stand, on namespaces that play the nodes: the same weights as a run here."""

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import ssh_hosts
import warm
from kubernetes_words import expanded
from small_task import write_task

import istbench
from istbench.cli import main
from istbench.cluster.profile import load_profile
from istbench.launch.engines import kubeflow, skypilot, slurm
from istbench.launch.engines.job import EngineJob
from istbench.node.checkpoint_steps import newest_whole
from istbench.results.events import Evaluation
from istbench.results.store import RunDirectory

_REASON = ssh_hosts.why_not()
if _REASON:
    pytest.skip(_REASON, allow_module_level=True)
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]  # on a busy machine

NODES = 2
_SECRET = "0123456789abcdef"
_TIMEOUT_S = 200


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Namespaces with a name, an address and a home directory each."""
    with ssh_hosts.hosts(NODES, tmp_path_factory.mktemp("machines") / "hosts") as found:
        yield found


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The packages that istbench requires, and not istbench: pip on a node finds nothing else."""
    folder = tmp_path_factory.mktemp("packages")
    own = ("istbench", "__editable__", "pip", "setuptools", "wheel", "__pycache__")
    for place in [path for path in sys.path if path.endswith("site-packages")]:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(own) and entry.suffix != ".pth" and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


# `python3 -m venv FOLDER` as a copy of a venv, whose pip names its Python.
COPIES = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec PYTHON "$@"
cp -a READY "$3" && sed -i "1s|READY|$3|" "$3/bin/pip"
"""
BASE = str(Path(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}"))


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A `python3` that takes a tenth of the time for a venv."""
    ready = tmp_path_factory.mktemp("ready") / "venv"
    subprocess.run([BASE, "-m", "venv", ready], check=True)
    return COPIES.replace("PYTHON", BASE).replace("READY", str(ready))


@pytest.fixture
def nodes(machines, packages, copies, tmp_path):
    """Starts a shell text on node `number` with variables; returns the process. Nodes copy a venv."""
    started, python = [], tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(copies)
    python.chmod(0o755)

    def start(number, command, **variables):
        home = tmp_path / f"home{number}"
        home.mkdir(exist_ok=True)
        given = {
            "PATH": f"{tmp_path}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home), "PYTHONPATH": str(packages), "PIP_NO_INDEX": "1", "PIP_NO_COMPILE": "1",
            "OMP_NUM_THREADS": "1", "ISTBENCH_SECRET": _SECRET, **variables,
        }  # fmt: skip
        enter = ["nsenter", "--net", "--uts", "--target", str(machines.servers[number].pid)]
        process = subprocess.Popen(
            [*enter, *command], env=given, cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def warm_nodes(nodes, packages):
    """The same, and torchrun begins warm. The test of a `TrainJob` has it cold."""
    path = f"{ssh_hosts.HOST_PYTHON}:{packages}"
    return functools.partial(nodes, **{warm.ADDRESS: warm.server_address(), warm.PYTHON: "any", "PYTHONPATH": path})


def finish(processes):
    """Wait for all; returns the exit statuses and the errors."""
    ended = [process.communicate(timeout=_TIMEOUT_S) for process in processes]
    return [process.returncode for process in processes], "\n".join(error for _, error in ended)


def job(tmp_path, install, **changed):
    task = write_task(tmp_path / "it's a task.py")
    words = ["run", "--workload", str(task), "--method", "ist", "--steps", "40", "--threads", "1"]
    given = {"words": words, "results": None, "hours": 1.0, **changed}
    return EngineJob(name="trial", nodes=NODES, machine=load_profile("m5.2xlarge"), install=str(install), **given)


def results_below(folder):
    """By the number of nodes, each cell of a results directory and its weights."""
    headers = [RunDirectory(path).header() for path in (folder / "runs").iterdir()]
    assert {header.status for header in headers} == {"done"}
    return {header.nodes: (header.cell, header.result.weights_sha256) for header in headers}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The cell that `istbench run` trains on this machine alone, and its weights."""
    folder = tmp_path_factory.mktemp("here")
    words = [*job(folder, "istbench").words, "--nodes", str(NODES), "--json", "--out", str(folder / "results")]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    found = json.loads(printed.getvalue())
    return found["cell"], found["weights_sha256"]


ADDRESSES = "\n".join(f"10.79.0.{number + 1}" for number in range(NODES))


def keep_compiled(folder, installed):
    """Let the package in `installed` find what the checkout compiled: numba looks by path and time of a source.

    Else it compiles for half a minute.
    """
    checkout = Path(istbench.__file__).parent
    compiled = Path(os.environ.get("NUMBA_CACHE_DIR") or checkout / "__pycache__")
    for source in {path.parent for path in (checkout / "cluster").rglob("*.py")}:
        own, its = (
            f"{path.name}_{hashlib.sha1(str(path).encode()).hexdigest()}"
            for path in (source, installed / source.relative_to(checkout))
        )
        for found in compiled.glob(f"compiled-cluster-*/{own}"):
            shutil.copytree(found, folder / found.parent.name / its)
        for path in source.glob("*.py"):
            shutil.copystat(path, installed / path.relative_to(checkout))


def test_commands_of_the_readme_hold_for_a_wheel_in_an_empty_folder(copies, packages, wheel, tmp_path):
    venv, folder = tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    (tmp_path / "python3").write_text(copies)
    variables = {"PATH": f"{venv}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    variables |= {"PIP_NO_COMPILE": "1", "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}

    def run(*words, status=0):
        ended = subprocess.run(words, cwd=folder, env=variables, text=True, capture_output=True)
        assert ended.returncode == status, ended.stderr
        return ended.stderr if status else ended.stdout

    run("sh", str(tmp_path / "python3"), "-m", "venv", str(venv))
    site = venv / f"lib/python{sysconfig.get_python_version()}/site-packages"
    (site / "packages.pth").write_text(str(packages))
    run("pip", "install", "--quiet", "--no-deps", str(wheel))
    keep_compiled(
        tmp_path / "compiled", venv / f"lib/python{sysconfig.get_python_version()}/site-packages/istbench"
    )
    assert "to reach accuracy" in " ".join(run("istbench", "report", "--example").split())
    assert json.loads(run("istbench", "map", "--example", "--json"))
    suites = run("istbench", "compare", "no-such-suite", status=2)
    assert all(f" {name}" in suites for name in ("quick", "smoke", "faults", "example"))
    assert list(folder.iterdir()) == []
    run("istbench", "new", "task", "my_task.py")
    assert [path.name for path in folder.iterdir()] == ["my_task.py"]


def start_section(nodes, text):
    """Start a section of SkyPilot's on all nodes."""
    return [
        nodes(number, ["bash", "-c", text], SKYPILOT_NODE_IPS=ADDRESSES, SKYPILOT_NODE_RANK=str(number))
        for number in range(NODES)
    ]


def test_setup_and_run_of_a_skypilot_task_and_the_end_of_its_hours(warm_nodes, wheel, tmp_path, here):
    asked = job(tmp_path, wheel)
    found = skypilot.task(asked)
    ((mounted, local),) = found["file_mounts"].items()
    for number in range(NODES):  # SkyPilot copies file_mounts
        path = tmp_path / f"home{number}" / mounted.removeprefix("~/")
        path.parent.mkdir(parents=True)
        path.write_bytes(Path(local).read_bytes())
    for section in ("setup", "run"):
        statuses, error = finish(start_section(warm_nodes, found[section]))
        assert statuses == [0] * NODES, error
    results = tmp_path / "home0" / "istbench-results"
    assert results_below(results) == {NODES: here}
    assert not (tmp_path / "home1" / "istbench-results").exists()

    shutil.rmtree(results)
    long = [*asked.words[:-3], "400000", "--threads", "1", "--eval-every", "20"]
    processes = start_section(warm_nodes, skypilot.task(job(tmp_path, wheel, words=long))["run"])
    until = time.monotonic() + _TIMEOUT_S
    while not any(map(has_trained, results.glob("runs/*"))):
        assert time.monotonic() < until
        assert [process.poll() for process in processes] == [None] * NODES, finish(processes)
        time.sleep(0.1)
    timers = [path for path in Path("/proc").glob("[0-9]*/cmdline") if is_timer(path, tmp_path)]
    assert len(timers) == NODES
    for path in timers:
        os.kill(int(path.parent.name), signal.SIGALRM)  # to `timeout`, the end of its seconds
    statuses, error = finish(processes)
    assert statuses == [124] * NODES, error
    (path,) = (results / "runs").iterdir()
    assert RunDirectory(path).header().status == "interrupted", error
    assert newest_whole(path / "checkpoint").totals.step > 0


def has_trained(path):
    """Whether the run at `path` has an evaluation after its first steps."""
    return any(isinstance(event, Evaluation) and event.step > 0 for event in RunDirectory(path).events())


def is_timer(path, folder):
    """Whether the process of a `cmdline` is a `timeout` of a run with results in `folder`."""
    with contextlib.suppress(OSError):
        words = path.read_bytes().split(b"\0")
        return words[0] == b"timeout" and any(str(folder).encode() in word for word in words)
    return False


def test_the_command_of_a_train_job(nodes, wheel, tmp_path, here):
    # Pods read no local wheel; they get its address.
    asked = job(tmp_path, wheel.as_uri())
    (replicated,) = kubeflow.objects(asked)[0]["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    volume = tmp_path / "volume"
    volume.mkdir()
    mounting = f'mount --bind {volume} {mount["mountPath"]} && exec "$@"'
    pod = ["unshare", "--mount", "sh", "-c", mounting, "sh", *(expanded(word, {}) for word in container["command"])]
    processes = [
        nodes(number, pod, PET_NODE_RANK=str(number), PET_MASTER_ADDR=ADDRESSES.split()[0], PET_NNODES=str(NODES))
        for number in range(NODES)
    ]
    statuses, error = finish(processes)
    assert statuses == [0] * NODES, error
    assert results_below(volume) == {NODES: here}


# Starts a task on each node, and ends all if one fails.
SRUN = """#!/bin/bash
shift
number=0 started=
for pid in PIDS; do
    SLURM_NODEID=$number nsenter --net --uts --target $pid "$@" &
    started="$started $!" number=$((number + 1))
done
for process in $started; do wait $process || exit; done
"""


def test_a_script_of_slurm(warm_nodes, machines, wheel, tmp_path, here):
    asked = job(tmp_path, wheel, results="our results")
    options = [word for word in asked.words[1:] if word not in ("--method", "ist")]
    words = ["compare", "--methods", "ist", "--nodes", f"1,{NODES}", *options]
    asked = job(tmp_path, wheel, results="our results", words=words)
    programs = {
        "srun": SRUN.replace("PIDS", " ".join(str(server.pid) for server in machines.servers)),
        "scontrol": f"#!/bin/sh\n[ \"$*\" = 'show hostnames node[1-2]' ] && echo '{ADDRESSES}'\n",
    }
    for name, text in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(slurm.file_of(asked))
    variables = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_SUBMIT_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    statuses, error = finish([warm_nodes(0, ["bash", str(script)], **variables)])
    assert statuses == [0], error
    found = results_below(tmp_path / "our results")
    assert (sorted(found), found[NODES]) == ([1, NODES], here)
    assert list(tmp_path.glob("tmp.*")) == []  # the nodes delete what they installed
