"""Runs that are interrupted, killed, left without room or with broken files: what is said, and how they go on."""

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from said import one_line
from warm import Python

from istbench.cli import main
from istbench.node.checkpoint_steps import find, newest_whole
from istbench.results.events import Resume
from istbench.results.load import load_run
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

TOY = ["run", "--workload", "toy", "--nodes", 2, "--method", "ist"]
LONG = [*TOY, "--epochs", 100_000]
RESUMED = ["run", "--workload", "held", "--nodes", 2, "--method", "ist", "--epochs", 12, "--set", "momentum=0.5",
           "--checkpoint-every", 0, "--json", "--set", "schedule=cosine", "--set", "warmup=0.1"]  # fmt: skip
# Goes no further than the middle where HELD is in the environment: rank 0, which also evaluates, makes that file.
HELD = """
import os, time
from pathlib import Path
from istbench.workloads.toy import Toy

class Held(Toy):
    name = "held"
    passes = 0

    def loss(self, model, batch):
        Held.passes += 1
        if "HELD" in os.environ and Held.passes == 100:
            Path(os.environ["HELD"]).touch()
            time.sleep(600)
        return super().loss(model, batch)
"""


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, istbench):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: needs root")
    try:
        (disk / "filler").write_bytes(b"x" * 4096 * 10)  # a run reserves two pages more
        run = [*TOY, "--steps", 160, "--eval-every", 4, "--out", disk]
        status, _, said = istbench(*run)
        assert status == 2
        assert "no space left" in one_line(said)
        (events,) = disk.glob("runs/*/events.jsonl")
        before = [text for text in events.read_text().splitlines() if text.endswith("}")]
        assert any(json.loads(text)["event"] == "evaluation" for text in before)
        header = json.loads((events.parent / "run.json").read_text())
        assert header["status"] == "failed"
        assert "no space left" in header["error"]
        assert [json.loads(text)["event"] for text in before[-2:]] == ["fault", "stop"]
        (disk / "filler").unlink()
        status, _, said = istbench(*run, "--json")
        assert status == 0, said
        assert events.read_text().startswith("\n".join(before[:2]))
    finally:
        subprocess.run(["umount", disk], check=True)


def start(tmp_path, *words, until, **environment):
    """Start `istbench ...` with its results in `tmp_path`, in a process group of its own; waits for a file."""
    process = Python(["istbench", *words, "--out", tmp_path], session=True, **environment)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for path in tmp_path.glob("runs/*"):
            if until(path):
                return process, path
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    raise AssertionError("the run did not start within two minutes")


def start_long_run(tmp_path):
    """A run that would last minutes, once it has evaluated a few times."""

    def has_evaluated(path):
        events = path / "events.jsonl"  # the directory and its header are there before it
        return events.exists() and events.read_text().count("evaluation") > 3

    return start(tmp_path, *LONG, until=has_evaluated)


def members(group):
    """Living processes of a process group."""
    alive = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of_group, *_ = (path / "stat").read_text().rsplit(")", 1)[1].split()  # see proc(5)
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            alive.append(int(path.name))
    return alive


def group_is_gone(group, within=60):
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not members(group):
            return True
        time.sleep(0.2)
    return False


def test_a_cell_is_run_by_one_istbench_at_a_time_and_ctrl_c_ends_it_with_every_process(tmp_path, istbench):
    process, run = start_long_run(tmp_path)
    status, _, said = istbench(*LONG, "--out", tmp_path)
    assert status == 2
    assert "another istbench is running toy-ist-n2-s0-" in one_line(said)
    os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted; run the same command again" in said
    assert "Traceback" not in said
    assert group_is_gone(process.pid)
    header = json.loads((run / "run.json").read_text())
    assert header["status"] == "interrupted"


KILLED = """
import os, signal
from istbench.methods.local_sgd import LocalSGD
class Killed(LocalSGD):
    name = "killed"
    taken = 0
    def step(self, batch):
        self.taken += 1
        if self.taken == 100 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(batch)
"""


def test_a_killed_worker_is_named_and_the_run_marked_failed(tmp_path, istbench):
    plugin = tmp_path / "killed.py"
    plugin.write_text(KILLED)
    toy = ["--workload", "toy", "--nodes", 2, "--out", tmp_path]
    status, _, said = istbench("run", "--method", "killed", "--plugin", plugin, *toy)
    assert status == 1, said
    assert "worker 1 was killed by SIGKILL" in said
    (run,) = tmp_path.glob("runs/*")
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert (run / "events.jsonl").read_text().count("evaluation") > 1
    assert not multiprocessing.active_children()


FAILING = """
import os, time
from istbench.methods.local_sgd import LocalSGD
class Failing(LocalSGD):
    name = "failing"
    taken = 0
    def step(self, batch):
        self.taken += 1
        if self.taken == 100 and os.environ["RANK"] == "1":
            if os.fork() == 0:  # keeps the connections open: rank 0 goes on waiting inside gloo
                time.sleep(30)
                os._exit(0)
            raise ValueError("no good")
        return super().step(batch)
"""


def test_a_failure_of_another_rank_closes_the_sinks(tmp_path, istbench):
    plugin = tmp_path / "failing.py"
    plugin.write_text(FAILING)
    toy = ["--workload", "toy", "--nodes", 2, "--sink", "mllog", "--out", tmp_path]
    status, _, said = istbench("run", "--method", "failing", "--plugin", plugin, *toy)
    assert (status, "worker 1 failed" in said) == (1, True), said
    (log,) = (tmp_path / "mllog").glob("*.log")
    first, *_, last = (json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines())
    assert first["key"] == "submission_benchmark"
    assert (last["key"], last["metadata"]) == ("run_stop", {"status": "aborted"})


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Words of a run that can be held."""
    plugin = tmp_path_factory.mktemp("plugin") / "held.py"
    plugin.write_text(HELD)
    return [*RESUMED, "--plugin", plugin]


def start_held(out, held, *words):
    """Start a run that can be held; waits until it is, so that it writes no checkpoint. Then `held` exists."""
    return start(out, *words, until=lambda _: held.exists(), HELD=str(held))


@pytest.fixture(scope="module")
def killed(resumed, tmp_path_factory):
    """Results of a run that was killed with its launcher between two checkpoints. It has two to resume from."""
    out = tmp_path_factory.mktemp("killed")
    process, run = start_held(out, tmp_path_factory.mktemp("held") / "file", *resumed)
    process.kill()
    process.communicate()
    assert group_is_gone(process.pid)  # its workers end by themselves
    assert json.loads((run / "run.json").read_text())["status"] == "running"
    return out


def json_of(words):
    """What `istbench` prints for `words`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0
    return json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def whole(resumed, tmp_path_factory):
    """The result of the run that is never stopped."""
    return json_of([*resumed, "--out", tmp_path_factory.mktemp("whole")])


def test_a_killed_run_resumes_to_the_weights_and_curve_of_one_that_never_stopped(
    tmp_path, killed, resumed, whole, istbench
):
    shutil.copytree(killed, tmp_path / "killed")
    one, other = whole, json.loads(istbench(*resumed, "--out", tmp_path / "killed")[1])
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["bytes_sent_per_node"] == other["bytes_sent_per_node"]
    curves = [load_run(RunDirectory(Path(result["run_dir"]))).curve for result in (one, other)]
    assert curves[0].values == curves[1].values
    assert len(curves[0].evaluations) == 13
    events = RunDirectory(Path(other["run_dir"])).events()
    assert [event.step > 0 for event in events if isinstance(event, Resume)] == [True]
    assert not (Path(other["run_dir"]) / "checkpoint").exists()


def test_a_run_goes_on_from_the_older_checkpoint_where_the_newer_is_damaged_and_says_so(
    tmp_path, killed, resumed, whole, istbench
):
    shutil.copytree(killed, tmp_path / "killed")
    (latest,) = tmp_path.glob("killed/runs/*/checkpoint/latest.json")
    # A kill may come before the step that these two replace is removed, and while a newer one is written.
    newer, older = (step.totals.step for step in find(latest.parent)[:2])
    part = latest.parent / str(newer) / "rank-1.safetensors"
    content = bytearray(part.read_bytes())
    for at in range(len(content) - 64, len(content)):
        content[at] ^= 0xFF
    part.write_bytes(content)
    status, out, said = istbench(*resumed, "--out", tmp_path / "killed")
    assert status == 0, said
    line = f"checkpoint {part} is broken (its SHA-256 differs from the manifest); the run resumes from the " \
        f"checkpoint of step {older}"  # fmt: skip
    assert said.count(line) == 1
    other = json.loads(out)
    assert other["weights_sha256"] == whole["weights_sha256"]
    run = RunDirectory(latest.parent.parent)
    resumptions = [event for event in run.events() if isinstance(event, Resume)]
    assert [(event.step, event.damage) for event in resumptions] == [(newer, ""), (older, line)]
    curves = [load_run(RunDirectory(Path(result["run_dir"]))).curve for result in (whole, other)]
    assert curves[0].values == curves[1].values


def test_checkpoints_that_are_all_damaged_are_one_line_that_says_what_to_delete(
    tmp_path, killed, resumed, istbench
):
    shutil.copytree(killed, tmp_path / "killed")
    (latest,) = tmp_path.glob("killed/runs/*/checkpoint/latest.json")
    for path in latest.parent.glob("*/rank-1.json"):
        path.write_bytes(path.read_bytes().replace(b"0", b"1"))
    status, _, said = istbench(*resumed, "--out", tmp_path / "killed")
    assert status == 2
    assert f"no older one is whole; delete {latest.parent} to start the cell again from step 0" in one_line(said)
    for path in latest.parent.glob("*/rank-1.json"):
        path.write_text("")
    status, _, said = istbench(*resumed, "--out", tmp_path / "killed")
    assert status == 2
    assert f"no older one is whole; delete {latest.parent} to start the cell again from step 0" in one_line(said)


def test_a_run_that_lost_its_events_is_refused_before_it_trains(tmp_path, killed, resumed, istbench):
    shutil.copytree(killed, tmp_path / "killed")
    (events,) = tmp_path.glob("killed/runs/*/events.jsonl")
    seen = [json.loads(line).get("step") for line in events.read_text().splitlines() if "evaluation" in line]
    step = newest_whole(events.parent / "checkpoint").totals.step
    events.unlink()
    status, _, said = istbench(*resumed, "--out", tmp_path / "killed")
    assert status == 2
    count = sum(at <= step for at in seen)
    assert count > 1
    assert f"{events} holds 0 evaluations, not {count}, up to the checkpoint of step {step}; " in one_line(said)
    assert not events.exists()


SLOW = """
import time
from istbench.workloads.toy import Toy

class Slow(Toy):
    name = "slow"

    def loss(self, model, batch):
        time.sleep(0.01)
        return super().loss(model, batch)
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Words of a run whose steps take their time."""
    plugin = tmp_path_factory.mktemp("slow") / "slow.py"
    plugin.write_text(SLOW)
    return ["run", "--plugin", plugin, "--workload", "slow", "--method", "local_sgd", "--nodes", 2, "--steps", 300,
            "--eval-every", 1000, "--set", "local_steps=1000", "--set", "momentum=0.5", "--json"]  # fmt: skip


@pytest.fixture(scope="module")
def slow_whole(slow, tmp_path_factory):
    """The result of that run, if it is never stopped."""
    return json_of([*slow, "--out", tmp_path_factory.mktemp("slow_whole")])


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGINT, [os.killpg]), (signal.SIGTERM, [os.kill]), (signal.SIGTERM, [os.kill, os.killpg])],
)
def test_ctrl_c_inside_a_round_leaves_a_checkpoint_from_which_the_run_is_the_one_that_never_stopped(
    tmp_path, istbench, slow, slow_whole, number, send
):
    """As `timeout` does, the last one signals twice: the launcher, and then its process group."""
    process, run = start(tmp_path, *slow, until=lambda path: (path / "events.jsonl").exists())
    while "evaluation" not in (run / "events.jsonl").read_text():
        time.sleep(0.05)
    time.sleep(0.5)
    for one in send:
        one(process.pid, number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "stopping after the next steps with a checkpoint" in said
    assert "interrupted; run the same command again" in said
    assert group_is_gone(process.pid)
    assert RunDirectory(run).header().status == "interrupted"
    step = newest_whole(run / "checkpoint").totals.step
    assert 0 < step < 300
    status, out, said = istbench(*slow, "--out", tmp_path)
    assert status == 0, said
    result = json.loads(out)
    assert [event.step for event in RunDirectory(run).events() if isinstance(event, Resume)] == [step]
    for name in ("weights_sha256", "bytes_sent_per_node", "train_loss", "final", "steps"):
        assert result[name] == slow_whole[name]


@pytest.mark.parametrize(
    ("mask", "folders", "files", "kills"), [(0o077, 0o700, 0o600, 1), (0o022, 0o755, 0o644, 0)]
)
def test_what_a_run_leaves_follows_the_umask(tmp_path, resumed, mask, folders, files, kills):
    """As asked for by `umask`, everything of a run and of saved weights: nobody else need read them."""
    (tmp_path / "out").mkdir()
    before = os.umask(mask)
    try:
        words = [*resumed, "--save", tmp_path / "saved"]
        for _ in range(kills):
            process, run = start_held(tmp_path / "out", tmp_path / "held", *words)
            process.kill()
            process.communicate()
            assert modes(run) == {"folders": {folders}, "files": {files}}
            assert group_is_gone(process.pid)
        process = Python(["istbench", *words, "--out", tmp_path / "out"])
        said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    finally:
        os.umask(before)
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert modes(run) == {"folders": {folders}, "files": {files}}
    assert modes(tmp_path / "saved") == {"folders": {folders}, "files": {files}}


def modes(path):
    """Permissions of all folders and files under `path`, and its own."""
    found = [path, *path.rglob("*")]
    return {
        "folders": {one.stat().st_mode & 0o777 for one in found if one.is_dir()},
        "files": {one.stat().st_mode & 0o777 for one in found if one.is_file() and one.suffix != ".tmp"},
    }
