"""Task files on the command line. Real processes: one check of all methods, and one run that stops and resumes."""

import json
import re
from pathlib import Path

import pytest
from said import one_line
from small_task import write_task

from istbench.base.options.run import RunRequest
from istbench.base.options.task_file import task_name
from istbench.launch.cells.resolve import prepare_cell
from istbench.studies.conformance.of_tasks import opened_task

TASK = """
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

steps = 0
print("to standard output")


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))


def data(train):
    print("reading")
    for _ in range(7):
        x = torch.randn(6, 4) + random.random()
        yield {"x": x, "y": x.sum(1, keepdim=True)}


def loss(model, batch):
    global steps
    steps += model.training
    if steps > 8 and Path("broken").exists():
        raise ValueError("no more steps")
    if model.training:
        batch = dict(batch, y=batch["y"] + random.random() + np.random.rand())
    return F.mse_loss(model(batch["x"]), batch["y"])


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.05, amsgrad=True)
"""


@pytest.mark.processes
def test_a_new_task_file_runs_by_every_method_that_fits(istbench, tmp_path):
    path = tmp_path / "my_task.py"
    assert istbench("new", "task", path)[0] == 0
    status, out, said = istbench("check", path)
    assert status == 0, out + said
    outcomes = {line.split()[1]: line for line in out.splitlines()}
    assert {"ddp", "local_sgd", "p3", "zero", "fsdp", "parameter_server", "dslide", "ist"} <= outcomes.keys()
    assert all(outcomes[name].startswith("holds") for name in ("ddp", "local_sgd", "p3", "zero", "fsdp"))
    assert outcomes["dslide"].startswith("skipped")
    assert "loss" in out
    status, _, said = istbench("new", "task", path)
    assert (status, one_line(said)) == (2, f"istbench: {path} is there already; choose another name")


@pytest.mark.processes
def test_a_run_of_a_task_file_resumes_bit_for_bit(istbench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TASK)

    def run(out):
        return istbench(
            "run", "--workload", "mine.py", "--method", "ddp", "--nodes", 2, "--steps", 9, "--eval-every", 3,
            "--checkpoint-every", 0, "--set", "schedule=cosine", "--json", "--out", out,
        )  # fmt: skip

    status, whole, said = run("whole")
    assert status == 0, said
    assert "6 samples in a minibatch of a node, 12 in a step of 2 nodes" in said
    assert "Each node reads all of them and takes every n-th" in said
    (tmp_path / "broken").touch()
    status, out, said = run("parts")
    line = TASK.splitlines().index('        raise ValueError("no more steps")') + 1
    assert (status, out) == (1, "")
    assert f"task file mine.py, line {line}, in loss: ValueError: no more steps" in said
    (tmp_path / "broken").unlink()
    status, resumed, said = run("parts")
    assert status == 0, said
    whole, resumed = json.loads(whole), json.loads(resumed)  # nothing else is on standard output
    assert whole["cell"] == resumed["cell"]
    assert whole["workload"] == "mine"
    assert whole["weights_sha256"] == resumed["weights_sha256"]
    events = [json.loads(line) for line in next((tmp_path / "parts/runs").glob("*/events.jsonl")).open()]
    assert [event["step"] for event in events if event["event"] == "resume"] > [0]


def test_a_failing_check_shows_the_first_mistake(istbench, tmp_path):
    line = TASK.splitlines().index('    return F.mse_loss(model(batch["x"]), batch["y"])') + 1
    for number, (wrong, error) in enumerate(
        [('batch["z"])', "KeyError: 'z'"), ('batch["y"] * int("2 s"))', "ValueError: invalid literal for int()")]
    ):
        path = tmp_path / f"wrong{number}.py"
        path.write_text(TASK.replace('batch["y"])', wrong))
        status, out, said = istbench("check", path)
        assert status == 1
        assert "to standard output" not in out
        found = out.splitlines()[-1].split(maxsplit=3)[3]
        assert found.startswith(f"task file {path.name}, line {line}, in loss: {error}")
    path = tmp_path / "lacking.py"
    path.write_text(TASK.replace("def data", "def date"))
    status, out, said = istbench("check", path)
    assert (status, out) == (2, "")
    assert one_line(said.partition("\n")[2]).startswith("istbench: task file lacking.py lacks def data(train)")
    assert istbench("new", "task", tmp_path / "wrong.txt")[0] == 2
    path = tmp_path / "plugged.py"
    path.write_text("from istbench.methods.local_sgd import LocalSGD\nclass Own(LocalSGD):\n    name = 'own'\n")
    assert (
        one_line(istbench("check", path)[2]) == f"istbench: {path} is a plug-in: istbench check own --plugin {path}"
    )


@pytest.mark.parametrize(("module", "base"), [("methods.local_sgd", "LocalSGD"), ("workloads.toy", "Toy")])
def test_a_plug_in_of_a_class_named_like_its_file_is_no_task_file(istbench, tmp_path, module, base):
    path = tmp_path / f"own_{base}.py"
    path.write_text(f"from istbench.{module} import {base}\nclass Own({base}):\n    name = {path.stem!r}\n")
    status, _, said = istbench("check", path)
    way_out = f"istbench check {path.stem} --plugin {path}"
    assert (status, one_line(said)) == (2, f"istbench: {path} is a plug-in: {way_out}")


def test_a_task_file_is_a_workload_with_a_file_in_every_request(tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    path = str(tmp_path / "mine.py")
    request = RunRequest(workload=path, method="local_sgd", steps=4)
    assert (request.workload, request.plugins) == ("mine", (path,))
    assert f"--plugin={path}" in request.arguments()
    header = prepare_cell(request, lambda *_: None)
    assert (header.workload_label, header.batch_size, header.data_source.train) == ("mine", 6, 42)
    assert header.cell.startswith("mine-local_sgd-n1-s0-")


@pytest.mark.parametrize("file", ["größe.py", "my task (1).py", "a.b-c.py", "random.py", "torch.py"])
def test_any_name_of_a_file_is_planned_resolved_and_loaded(istbench, tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / file)
    status, _, said = istbench("plan", "--workload", file, "--method", "ddp", "--json")
    assert status == 0, said
    cell = prepare_cell(RunRequest(workload=file, method="ddp", steps=2), lambda *_: None)
    assert cell.cell.startswith(f"{task_name(file)}-ddp-n1-s0-")
    assert opened_task(Path(file)).name == task_name(file)


@pytest.mark.processes
def test_a_file_with_a_name_of_other_letters_trains_and_is_reported(istbench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / "größe.py")
    words = ("--workload", "größe.py", "--methods", "ddp,local_sgd", "--nodes", 2, "--steps", 2, "--out", "out")
    status, out, said = istbench("compare", *words)
    assert status == 0, said
    assert "grosse" in out
    assert {path.name[:7] for path in (tmp_path / "out" / "runs").iterdir()} == {"grosse-"}
    status, out, said = istbench("report", "out", "--workload", "grosse")
    assert status == 0, said


@pytest.mark.processes
@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        (
            "def loss(model, batch):",
            "class Late(torch.autograd.Function):\n    calls = 0\n\n"
            "    @staticmethod\n    def forward(ctx, x):\n        return x.clone()\n\n"
            "    @staticmethod\n    def backward(ctx, gradient):\n        Late.calls += 1\n"
            "        return gradient if Late.calls < 20 else gradient[:1]\n\n\n"
            "def loss(model, batch):\n"
            "    return F.cross_entropy(Late.apply(model(batch[0])), batch[1])\n\n\ndef unused(model, batch):",
            1,
            r"worker \d failed while computing training step \d+: task file mine\.py, line 10, model: "
            "RuntimeError: Function LateBackward returned an invalid gradient",
        ),
        (
            'return {"accuracy": torch.cat(right).float().mean()}',
            'exit(0)\n\n\nevaluate.metric = "accuracy"',
            2,
            r"task file mine\.py, line 25, in evaluate: calls exit\(0\); it should return",
        ),
    ],
    ids=["a gradient of a library", "exit"],
)
def test_an_error_in_a_worker_names_the_file_and_the_operation(
    istbench, tmp_path, monkeypatch, old, new, status, said
):
    monkeypatch.chdir(tmp_path)
    path = write_task(tmp_path / "mine.py")
    path.write_text(path.read_text().replace(old, new))
    words = ("run", "--workload", "mine.py", "--method", "ddp", "--nodes", 2, "--steps", 40, "--batch-size", 4)
    found, _, printed = istbench(*words, "--out", "out")
    assert found == status, printed
    assert re.match(f"istbench: {said}", one_line(printed))
    assert any("Traceback" in log.read_text() for log in tmp_path.glob("out/runs/*/logs/*/stderr.log"))
