"""`istbench record train.py`: as a user runs it, or its part in the script's own process."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import quick_recorded_script
import torch
from said import one_line

from istbench.base.errors import RunFailed, UserError
from istbench.cli import main
from istbench.cluster.script_record import load_script
from istbench.launch.processes import recorded_script
from istbench.node.effort import EFFORT
from istbench.plan.recording.script import record_script

LOOP = """
import sys
import torch
from torch import nn
import helper
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, helper.HIDDEN), nn.ReLU(), nn.Linear(helper.HIDDEN, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def record(tmp_path, monkeypatch, capfd, warm_commands):
    """Runs `istbench record` on a script of this text; returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recorded_script, "__name__", quick_recorded_script.__name__)
    monkeypatch.setenv("PYTHONPATH", str(Path(quick_recorded_script.__file__).parent), prepend=os.pathsep)
    (tmp_path / "helper.py").write_text("HIDDEN = 5\n")

    def run(text, *options, arguments=()):
        Path("train.py").write_text(LOOP + textwrap.dedent(text))
        with pytest.raises(SystemExit) as ended:
            main(["record", *map(str, options), "train.py", *arguments])
        said = capfd.readouterr()
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def record_here(tmp_path, monkeypatch):
    """Records a script of this text in this process; returns the record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EFFORT, "repeats", 1)
    (tmp_path / "helper.py").write_text("HIDDEN = 5\n")

    def run(text, *, steps=8, max_seconds=60.0, arguments=()):
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", sys.path[:])
        sys.modules.pop("helper", None)
        Path("train.py").write_text(LOOP + textwrap.dedent(text))
        found = []
        record = record_script(Path("train.py"), arguments, steps=steps, max_seconds=max_seconds, done=found.append)
        assert found == [record]
        return record

    return run


@pytest.mark.processes
def test_json_is_pure_and_the_script_prints_to_stderr(record):
    text = """
    import os, subprocess
    assert __name__ == "__main__" and __file__.endswith("train.py"), __file__
    print("arguments", sys.argv[1:])
    sys.stdout.write("written\\n"), os.write(1, b"raw\\n"), sys.stdout.buffer.write(b"bytes\\n")
    subprocess.run(["echo", "child"])
    while True:
        step()
    """
    status, out, err = record(text, "--steps", 9, "--json", arguments=["--lr=3", "-x", "--json"])
    assert status == 0
    said = json.loads(out)
    assert list(said) == ["step_s", "parameters", "gradient_ready_s", "peak_bytes", "file"]
    assert said["file"] == "train.record.json"
    assert {own["name"] for own in said["parameters"]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert said["gradient_ready_s"] == sorted(said["gradient_ready_s"])
    for line in ("arguments ['--lr=3', '-x', '--json']", "written", "raw", "bytes", "child"):
        assert line in err
    found = load_script(Path("train.record.json"))
    assert (found.script, found.arguments) == ("train.py", ("--lr=3", "-x", "--json"))


@pytest.mark.processes
def test_the_record_is_replayed_and_planned(record, capfd):
    status, out, _ = record("while True: step()", "--steps", 8, "--out", "some.json", "--threads", 1)
    assert status == 0
    assert "seconds per step" in out
    assert load_script(Path("some.json")).machine.threads == 1
    said = []
    for words in (
        ["replay", "some.json", "--method", "ddp", "--nodes", "4", "--bandwidth", "10mbit", "--format", "json"],
        ["plan", "some.json", "--method", "zero", "--nodes", "2", "--json"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        said.append(json.loads(capfd.readouterr().out))
    ((row,),) = [table["rows"] for table in said[0]["tables"]]
    assert (row["method"], row["nodes"]) == ("ddp", 4)
    bytes_of_gradients = 4 * (6 * 5 + 5 + 5 * 2 + 2)
    assert row["sent_mb_per_step"] == pytest.approx(2 * 3 / 4 * bytes_of_gradients / 1e6, rel=0.1)
    assert said[1]["model_parameters"] == bytes_of_gradients // 4


LBFGS = "optimizer = torch.optim.LBFGS(model.parameters())\noptimizer.step(lambda: 0)"
SPAWN = "import torch.multiprocessing as mp\nmp.spawn(lambda rank: step(), nprocs=2)"
CHILD = """import multiprocessing
child = multiprocessing.get_context("fork").Process(target=step)
child.start(), child.join()"""
WITHOUT_RECORD = {
    "for _ in range(5): step()": (
        RunFailed,
        "train.py ended after 5 optimizer steps; a record of 30 takes at least 15: ask for fewer",
    ),
    "": (RunFailed, "train.py ended without a step of a torch optimizer in its own process; steps of child proc"),
    CHILD: (RunFailed, "train.py ended without a step of a torch optimizer in its own process"),
    "while True: pass": (RunFailed, "train.py ran for 0.5 s without a step of .* own process; give it longer with"),
    "step(); step(); 1 / 0": (RunFailed, "train.py failed after 2 optimizer steps: ZeroDivisionError: division by"),
    "sys.exit(3)": (RunFailed, "train.py ended with status 3 after 0 optimizer steps"),
    "step(); sys.exit('no data')": (RunFailed, "train.py ended with status no data after 1 optimizer steps"),
    "import nowhere": (RunFailed, "failed after 0 optimizer steps: ModuleNotFoundError: No module named 'nowhere'"),
    "def f(:": (RunFailed, "train.py failed after 0 optimizer steps: SyntaxError"),
    LBFGS: (UserError, "train.py cannot be recorded: LBFGS computes the loss several times in a step"),
    SPAWN: (
        UserError,
        "train.py cannot be recorded: it spawns 2 processes, whose exchange would count as computing",
    ),
    "step()\nwhile True: pass": (RunFailed, "train.py took 1 optimizer step in 0.5 s; give it longer with --max"),
}


@pytest.mark.processes
@pytest.mark.parametrize("text", WITHOUT_RECORD, ids=range(len(WITHOUT_RECORD)))
def test_a_script_that_gives_no_record_says_why_in_one_line(record_here, text):
    kind, reason = WITHOUT_RECORD[text]
    with pytest.raises(kind, match=reason) as caught:
        record_here(text, steps=30, max_seconds=0.5 if "while" in text else 60)
    assert "\n" not in str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("1 / 0", 1, "train.py failed after 0 optimizer steps: ZeroDivisionError"),
        (LBFGS, 2, "train.py cannot be recorded: LBFGS"),
        ("import os\nfor _ in range(5): step()\nos._exit(0)", 1, "train.py ended by os._exit with status 0 before"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 1, "train.py ended by signal SIGKILL before 8"),
    ],
)
def test_no_record_is_never_silent(record, text, status, reason):
    code, out, err = record(text, "--steps", 8)
    assert (code, out) == (status, "")
    (line,) = [line for line in err.splitlines() if line.startswith("istbench: ")]
    assert reason in line
    assert not Path("train.record.json").exists()


def running(mark):
    """Whether a process has this text in its command line."""
    return any(mark in path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())


KEPT_ALIVE = """
import atexit, multiprocessing, subprocess, threading, time
def sleep():
    time.sleep(3600)
threading.Thread(target=sleep).start()
multiprocessing.get_context("fork").Process(target=sleep).start()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)  # MARK"], start_new_session=True)
atexit.register(sleep)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("while True: step()", 0),
        ("time.sleep(3600)", 1),
        ("while True:\n    try: step()\n    except BaseException: pass", 0),
        ("while True:\n    try: time.sleep(3600)\n    except BaseException: pass", 1),
    ],
)
def test_threads_children_and_exit_handlers_do_not_keep_it(record, text, status):
    mark = f"mark{os.getpid()}"
    code, _, err = record(
        KEPT_ALIVE.replace("MARK", mark) + text, "--steps", 8, "--max-seconds", 2 if status else 60
    )
    assert code == status, err
    assert Path("train.record.json").exists() == (status == 0)
    assert not running(mark)


def test_a_single_spawned_process_is_recorded(record_here):
    text = """
    def main(rank, scale):
        assert (rank, scale) == (0, 2)
        while True:
            step()
    import torch.multiprocessing as mp
    mp.spawn(main, args=(2,))
    """
    spawn = sys.modules["torch.multiprocessing.spawn"].start_processes
    record_here(text)
    record_here(text.replace("mp.spawn(", "mp.start_processes("))
    assert sys.modules["torch.multiprocessing.spawn"].start_processes is spawn


def test_a_long_argument_is_cut_in_the_record_and_whole_in_the_script(record_here):
    text = """
    assert len(sys.argv[2]) == 5000
    while True:
        step()
    """
    found = record_here(text, arguments=["--config", 5000 * "x"])
    assert found.arguments == ("--config", f"{4095 * 'x'}…")


def test_a_failure_shows_the_lines_of_the_script_and_none_of_ours(record_here, capfd):
    with pytest.raises(RunFailed):
        record_here("def inner():\n    raise ValueError('mine')\nstep()\ninner()")
    err = capfd.readouterr().err
    assert "ValueError: mine" in err
    assert 'train.py"' in err
    assert "istbench/plan/recording" not in err


def test_a_script_cannot_mistake_the_end_for_its_own_error(record_here, capfd):
    text = """
    failures = []
    while True:
        try:
            step()
        except Exception as error:
            failures.append(error)
    """
    record_here(text)
    record_here("while True:\n    try: step()\n    except BaseException: break\nprint('cleaned up')")
    assert "cleaned up" in capfd.readouterr().out


@pytest.mark.processes
def test_data_loader_workers_and_a_script_that_ends_by_itself(record):
    text = """
    if __name__ == "__main__":
        data = torch.utils.data.TensorDataset(torch.randn(80, 6))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    """
    code, _, err = record(text, "--steps", 1000)
    assert code == 0, err
    assert len(json.loads(Path("train.record.json").read_bytes())["samples_s"]) == 20 - 3 - 10


def test_processes_of_one_group_are_refused(record_here, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(UserError, match="it trains in a process group of 4"):
        record_here("step()")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["record"], "Missing argument 'TRAIN.py'"),
        (["record", "nowhere.py"], "no script nowhere.py"),
        (["record", "--steps", "3", "x.py"], "8<=x"),
        (["record", "--max-seconds", "-1", "x.py"], "--max-seconds"),
        (["record", "--threads", "none", "x.py"], "--threads"),
        (["replay", "x.json", "--metric", "top10"], "--metric is for recorded runs"),
        (["replay", ".", "--method", "ddp"], "--method is for a file of `istbench record`"),
        (["replay", "x.json", "--method", "ddp"], "x.json: not JSON"),
        (["plan", "x.json", "--method", "ddp", "--batch-size", "3"], "--batch-size is for a workload"),
        (["plan", "--method", "ddp"], "plan needs a --workload, or a file of `istbench record`"),
    ],
)
def test_wrong_use_is_one_line(words, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text("nothing")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert reason in one_line(capsys.readouterr().err)


@pytest.mark.processes
def test_the_record_lies_where_the_command_started(record, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    status, out, _ = record("import os\nos.chdir('elsewhere')\nwhile True: step()", "--steps", 8, "--json")
    assert (status, json.loads(out)["file"]) == (0, "train.record.json")
    assert load_script(tmp_path / "train.record.json").script == "train.py"


@pytest.mark.processes
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_script_and_its_children(tmp_path, ending):
    mark = f"mark{os.getpid()}"
    text = KEPT_ALIVE.replace("MARK", mark) + "open('ready', 'w').close()\nsleep()"
    (tmp_path / "train.py").write_text(f"import sys\n{text}")
    command = subprocess.Popen(
        [sys.executable, "-m", "istbench", "record", "train.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    command.send_signal(ending)
    assert "istbench: interrupted" in command.communicate()[1]
    assert command.returncode == 130
    assert not running(mark)


@pytest.mark.processes
def test_ctrl_c_before_the_script_starts_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import time\nopen('ready', 'w').close()\ntime.sleep(60)")
    (tmp_path / "train.py").touch()
    command = subprocess.Popen(
        [sys.executable, "-m", "istbench", "record", "train.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    os.killpg(command.pid, signal.SIGINT)
    assert one_line(command.communicate()[1]).startswith("istbench: interrupted")
    assert command.returncode == 130
