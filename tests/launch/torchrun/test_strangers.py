"""Runs under torchrun whose store someone with another account of the machine reaches too: real processes."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from free_port import free_port
from warm import Python

from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.results.store import RunDirectory

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("warm_commands")]

STRANGER = Path(__file__).parents[2] / "stranger.py"
UID = 65534  # of nobody
SECRET = "a secret of these tests"


@contextmanager
def stranger(port, start):
    """One who is there from before the run until it has ended; yields all that it printed, afterwards."""
    printed = []
    command = [sys.executable, STRANGER, UID, port, start]
    with subprocess.Popen(list(map(str, command)), text=True, stdout=subprocess.PIPE) as process:
        try:
            yield printed
        finally:
            process.terminate()
            printed += process.communicate()[0].splitlines()


def run(port, tmp_path, *words, **environment):
    """Two nodes on this host under torchrun, whose store listens at `port`; what they printed, and the status."""
    torchrun = ["--nnodes", 1, "--node-rank", 0, "--nproc-per-node", 2, "--rdzv-endpoint", f"127.0.0.1:{port}"]
    own = ["run", "--workload", "toy", "--seed", 1, "--threads", 1, "--json", "--out", tmp_path / "out", *words]
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun, "-m", "istbench", *own]
    return subprocess.run(
        list(map(str, command)),
        text=True,
        capture_output=True,
        timeout=240,
        env={**os.environ, "ISTBENCH_SECRET": SECRET, **environment},
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_stranger_runs_nothing_ends_nothing_and_learns_no_secret(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    plugin, mark = theirs / "plugin.py", theirs / "it-ran"
    plugin.write_text(f"import os, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getuid()))\n")
    cell = prepare_cell(RunRequest(workload="toy", method="p3", nodes=2, steps=2000), lambda *_: None)
    config = msgspec.structs.replace(cell.config, plugins=(str(plugin),))
    header = msgspec.structs.replace(cell, config=config)
    RunDirectory(theirs / "run").create(header)
    start = {"run": str(theirs / "run"), "header": json.loads((theirs / "run" / "run.json").read_bytes())}
    port = free_port()
    with stranger(port, json.dumps(start)) as printed:
        found = run(port, tmp_path, "--method", "p3", "--steps", 2000, "--eval-every", 2000)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["status"] == "done"
    assert [line.removeprefix("the stranger ") for line in printed if line.startswith("the stranger ")] == [
        "is there", "says that training begins", "says that a rank has ended",
    ]  # fmt: skip
    assert not mark.exists()
    read = "\n".join(line for line in printed if not line.startswith("the stranger "))
    assert "start" in read
    assert SECRET not in read
    assert "token" not in read
    assert "transport" not in read  # where nodes listen crosses a store that is bound to their interface


def test_hosts_whose_secrets_differ_are_told_so(tmp_path):
    both, port = [], free_port()
    for host, secret in enumerate((SECRET, SECRET + "!")):
        torchrun = ["--nnodes", 2, "--node-rank", host, "--nproc-per-node", 1]
        torchrun += ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        own = ["run", "--workload", "toy", "--method", "ddp", "--steps", 20, "--out", tmp_path / str(host)]
        words = ["torch.distributed.run", *torchrun, "-m", "istbench", *own]
        both.append(Python(words, ISTBENCH_SECRET=secret))
    (_, first), (_, second) = (process.communicate(timeout=240) for process in both)
    (line,) = [line for line in first.splitlines() if line.startswith("istbench: ")]
    assert line.startswith(
        "istbench: rank 1 does not have this run's secret: ISTBENCH_SECRET differs between the hosts"
    )
    assert not [line for line in second.splitlines() if line.startswith("istbench") and "Traceback" in line]
    assert [process.returncode for process in both] == [1, 1]
