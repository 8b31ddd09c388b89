"""`istbench record train.py`, run in this process as a user runs it."""

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from said import one_line

from istbench.cli import main
from istbench.cluster.script_record import load_script
from istbench.recording import steps

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
def record(tmp_path, monkeypatch, capfd):
    """Runs `istbench record` on a script of this text; returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(steps, "_MEASUREMENTS", 1)
    (tmp_path / "helper.py").write_text("HIDDEN = 5\n")

    def run(text, *options, arguments=()):
        Path("train.py").write_text(LOOP + textwrap.dedent(text))
        threads, path, before = torch.get_num_threads(), sys.path[:], sys.argv[:]
        with pytest.raises(SystemExit) as ended:
            main(["record", *map(str, options), "train.py", *arguments])
        torch.set_num_threads(threads)
        sys.modules.pop("helper", None)
        assert (sys.path, sys.argv) == (path, before)
        said = capfd.readouterr()
        return ended.value.code, said.out, said.err

    return run


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
WITHOUT_RECORD = {
    "for _ in range(5): step()": (
        1,
        "train.py ended after 5 optimizer steps; a record of 30 takes at least 15: ask for fewer",
    ),
    "": (1, "train.py ended without a step of a torch optimizer in its own process"),
    "step(); step(); 1 / 0": (1, "train.py failed after 2 optimizer steps: ZeroDivisionError: division by zero"),
    "sys.exit(3)": (1, "train.py ended with status 3 after 0 optimizer steps"),
    "step(); sys.exit('no data')": (1, "train.py ended with status no data after 1 optimizer steps"),
    "import nowhere": (1, "failed after 0 optimizer steps: ModuleNotFoundError: No module named 'nowhere'"),
    "def f(:": (1, "train.py failed after 0 optimizer steps: SyntaxError"),
    LBFGS: (2, "train.py cannot be recorded: LBFGS computes the loss several times in a step"),
    "step()\nwhile True: pass": (1, "train.py took 1 optimizer step in 0.5 s; give it longer with --max-seconds"),
}


@pytest.mark.parametrize(
    ("text", "status", "reason"), [(text, *said) for text, said in WITHOUT_RECORD.items()], ids=range(9)
)
def test_a_script_that_gives_no_record_says_why_in_one_line(record, text, status, reason):
    code, out, err = record(text, "--max-seconds", 0.5 if "while" in text else 60)
    assert (code, out) == (status, "")
    lines = [line for line in err.splitlines() if line.startswith("istbench: ")]
    assert len(lines) == 1
    assert reason in lines[0]
    assert not Path("train.record.json").exists()


def test_a_long_argument_is_cut_in_the_record_and_whole_in_the_script(record):
    text = """
    assert len(sys.argv[2]) == 5000
    while True:
        step()
    """
    status, _, err = record(text, "--steps", 8, arguments=["--config", 5000 * "x"])
    assert status == 0, err
    found = load_script(Path("train.record.json"))
    assert found.arguments == ("--config", f"{4095 * 'x'}…")


def test_a_failure_shows_the_lines_of_the_script_and_none_of_ours(record):
    _, _, err = record("def inner():\n    raise ValueError('mine')\nstep()\ninner()")
    assert "ValueError: mine" in err
    assert 'train.py"' in err
    assert "istbench/recording" not in err


def test_a_script_cannot_mistake_the_end_for_its_own_error(record):
    text = """
    failures = []
    while True:
        try:
            step()
        except Exception as error:
            failures.append(error)
    """
    assert record(text, "--steps", 8)[0] == 0
    status, _, err = record(
        "while True:\n    try: step()\n    except BaseException: break\nprint('cleaned up')", "--steps", 8
    )
    assert status == 0
    assert "cleaned up" in err


def test_data_loader_workers_and_a_script_that_ends_by_itself(record):
    text = """
    data = torch.utils.data.TensorDataset(torch.randn(80, 6))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    """
    status, _, err = record(text, "--steps", 1000)
    assert status == 0, err
    assert len(load_script(Path("train.record.json")).samples_s) == 20 - 3 - 10


def test_processes_of_one_group_are_refused(record):
    text = """
    torch.distributed.is_initialized = lambda: True
    torch.distributed.get_world_size = lambda: 4
    step()
    """
    before = torch.distributed.is_initialized, torch.distributed.get_world_size
    status, _, err = record(text)
    torch.distributed.is_initialized, torch.distributed.get_world_size = before
    assert status == 2
    assert "it trains in a process group of 4" in one_line(err)


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


def test_the_record_lies_where_the_command_started(record, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    text = "import os\nos.chdir('elsewhere')\nwhile True: step()"
    for words, file in (([], "train.record.json"), (["--out", "some.json"], "some.json")):
        status, out, _ = record(text, "--steps", 8, "--json", *words)
        os.chdir(tmp_path)
        assert (status, json.loads(out)["file"]) == (0, file)
        assert load_script(tmp_path / file).script == "train.py"
