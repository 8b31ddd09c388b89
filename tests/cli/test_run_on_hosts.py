"""`run --hosts` and `doctor --hosts`, on two hosts with networks, sshds and results directories of their own."""

import json
import re
import shutil
import subprocess

import pytest
import ssh_hosts
from small_task import write_task

from istbench.base.options.run import RunRequest
from istbench.launch.cells.execute import execute
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.local import LocalLauncher
from istbench.node.weights_file import saved_digest
from istbench.results.store import RunDirectory

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("warm_commands")]

WORDS = ["run", "--method", "ist", "--workload", "toy", "--steps", "20", "--seed", "1"]
WORDS += ["--threads", "1", "--json"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    reason = ssh_hosts.why_not()
    if reason:
        pytest.skip(reason)
    with ssh_hosts.hosts(2, tmp_path_factory.mktemp("ssh") / "hosts") as found:
        yield found


def asked(hosts, *words, named=""):
    return subprocess.run(
        hosts.command(*words, "--hosts", named or ",".join(hosts.names)),
        env=hosts.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


PLUGIN = """
import hashlib
from istbench.workloads.base import DataSource
from istbench.workloads.toy import Toy

class Counted(Toy):
    name = "counted"

    def prepare(self, data, cache, progress):
        content = (data / "numbers").read_bytes()
        return DataSource(kind="numbers", fingerprint=hashlib.sha256(content).hexdigest(), train=512, test=128)
"""


def test_data_and_plugins_go_to_the_hosts_and_results_and_weights_of_the_local_run_come_here(hosts, tmp_path):
    inputs = hosts.out / "inputs"  # hosts have other directories of that name, and without it
    inputs.mkdir()
    (inputs / "numbers").write_bytes(b"12" * 600_000)
    (inputs / "counted.py").write_text(PLUGIN)
    own = [
        "--workload",
        "counted",
        "--plugin",
        inputs / "counted.py",
        "--data",
        inputs,
        "--save",
        tmp_path / "weights",
    ]
    there = asked(hosts, *WORDS, *own, "--out", hosts.out)
    assert there.returncode == 0, there.stderr
    assert "2 nodes on 2 hosts, talking by gloo over eth0 (10.79.0.1)" in there.stderr.splitlines()
    copied = [line for line in there.stderr.splitlines() if line.startswith("copied ")]
    # The hosts share a cache here, so one may find what the other got.
    assert copied[0].startswith((f"copied {inputs}, {inputs}/counted.py to host", f"copied {inputs} to host"))
    assert copied[-1].startswith(f"copied the weights to {tmp_path}/weights: ")

    found = json.loads(there.stdout)
    request = RunRequest(
        workload="counted", method="ist", nodes=2, steps=20, seed=1, threads=1, data=inputs,
        plugins=(str(inputs / "counted.py"),),
    )  # fmt: skip
    cell = prepare_cell(request, lambda *_: None)
    local = RunDirectory.of(tmp_path, cell.cell)
    execute(cell, local, tmp_path / "scratch", LocalLauncher())
    assert (found["cell"], found["weights_sha256"]) == (cell.cell, local.header().result.weights_sha256)
    assert found["run_dir"] == str(hosts.out / "runs" / found["cell"])
    (run,) = (hosts.out / "runs").iterdir()
    assert sorted(path.name for path in run.iterdir()) == ["events.jsonl", "run.json", "trace.npz"]
    assert json.loads((run / "run.json").read_text())["host"]["name"] == "host0, host1"
    assert found["saved"] == str(tmp_path / "weights")
    assert saved_digest(tmp_path / "weights") == found["weights_sha256"]
    assert not list(hosts.results(0).glob("saved/*"))

    again = asked(hosts, *WORDS, *own, "--out", hosts.out)
    assert (again.returncode, again.stdout) == (0, there.stdout)
    assert not [line for line in again.stderr.splitlines() if line.startswith("copied ")]
    assert f"{found['cell']} is done already; --again runs it from the start" in again.stderr.splitlines()
    assert "talking by" not in again.stderr  # nothing was started
    hosts.assert_nothing_left()


def test_cells_run_on_the_first_slots_of_a_file_of_hosts_and_come_home_by_the_same_command(hosts, tmp_path):
    task, named = write_task(hosts.out / "own.py"), tmp_path / "named"
    named.write_text("host0 slots=2  # one for each GPU\nhost1\n")
    cells = ["compare", "--methods", "ist", "--workload", task, "--nodes", "2,3", "--steps", "6", "--threads", "1"]
    cells += ["--out", hosts.out / "left", "--ssh-config", hosts.folder / "config"]
    left = asked(hosts, *cells, "--detach", named=str(named))
    assert left.returncode == 0, left.stderr
    assert f"copied {task} to host0" in left.stderr
    assert "host0 runs 2 cells on its own now; the same command without --detach " in left.stderr
    home = asked(hosts, *cells, named=str(named))
    assert home.returncode == 0, home.stderr
    assert "following the cell that host0 runs on its own; Ctrl-C leaves it running" in home.stderr.splitlines()
    headers = [json.loads(path.read_text()) for path in (hosts.out / "left" / "runs").glob("*/run.json")]
    assert sorted((header["nodes"], header["status"], header["host"]["name"]) for header in headers) == [
        (2, "done", "host0"), (3, "done", "host0, host1"),
    ]  # fmt: skip
    assert "measured on host0" in home.stdout
    assert list((hosts.out / "left" / "report").glob("own-*.png"))
    hosts.assert_nothing_left()
    (lost,) = (hosts.out / "left" / "runs").glob("*-n2-*")
    shutil.rmtree(lost)  # as if the link had failed before it came home
    again = asked(hosts, *cells, named=str(named))
    assert again.returncode == 0, again.stderr
    assert again.stdout == home.stdout
    assert again.stderr.count(": done before") == 1
    assert "following" not in again.stderr
    assert (lost / "run.json").exists()


def test_doctor_names_a_slow_link(hosts):
    for number, rate in enumerate(["100mbit", "47mbit"]):  # of which headers take a twentieth
        # A short queue: what acknowledges the other way's bytes waits in it too, and a second is measured.
        bucket = f"qdisc add dev eth0 root tbf rate {rate} burst 32kb latency 10ms"
        hosts.inside(number, "tc", *bucket.split())
    seen = []
    for _ in range(3):  # other tests may take the cores during a measurement
        done = asked(hosts, "doctor")
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.strip()]
        assert [words[1] for words in lines if words[0] == "ok" and words[1] != "all-reduce"] == hosts.names
        (reduced,) = [words[2] for words in lines if words[1] == "all-reduce"]
        bus = re.match(r"all 2 nodes at once by gloo: bus bandwidth ([\d.]+) Mbit/s", reduced)
        seen.append([words[2] for words in lines if words[0] == "slow"])
        rates = [re.match(r"host1 to host0 carries ([\d.]+) Mbit/s; usual is ", slow) for slow in seen[-1]]
        found = [float(rate[1]) if rate else 0.0 for rate in rates]
        if len(found) == 1 and 40 < found[0] < 60 and bus and 30 < float(bus[1]) < 60:
            break
    assert len(found) == 1, seen
    assert 40 < found[0] < 60, seen
    assert 30 < float(bus[1]) < 60, reduced
    hosts.assert_nothing_left()


def test_doctor_finds_the_uplink_of_racks(tmp_path):
    reason = ssh_hosts.why_not()
    if reason:
        pytest.skip(reason)
    bucket = "tbf rate 60mbit burst 32kb latency 10ms"
    with ssh_hosts.hosts(4, tmp_path / "hosts", rack=2, uplink=bucket) as racks:
        for number in range(4):
            racks.inside(number, "tc", *f"qdisc add dev eth0 root {bucket}".split())
        found = r"every 2 hosts, in this order, share a switch with an uplink of ([\d.]+) Mbit/s each way"
        rates = []
        # Other tests may take the cores: then hosts start and end apart, and each rate is that of its own second.
        for _ in range(5):
            done = asked(racks, "doctor")
            assert done.returncode == 0, done.stdout + done.stderr
            rates += [float(rate) for rate in re.findall(found, done.stdout)]
            if any(45 < rate < 75 for rate in rates):
                break
    assert any(45 < rate < 75 for rate in rates), (rates, done.stdout)
