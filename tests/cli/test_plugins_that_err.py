"""Plug-ins whose code errs, or gives something that is none: one line that names it. Some real processes."""

import json

import pytest
from said import one_line

PLUGIN = """
import torch
from istbench.methods.local_sgd import LocalSGD
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot
from istbench.workloads.toy import Toy

class Early(Toy):
    name = "early"

    def open(self, source):
        self.classes = 4

    def build_model(self):
        return torch.nn.Linear(8, self.classes)

class Perplexed(Toy):
    name = "perplexed"
    metric = "perplexity"

class Tensors(Toy):
    name = "tensors"

    def evaluate(self, model, batches):
        return {name: torch.tensor(value) for name, value in super().evaluate(model, batches).items()}

class Missing(Toy):
    name = "missing"

    def evaluate(self, model, batches):
        return {"loss": 1.0}

class Blank(Toy):
    name = "blank"
    meta_batch = lambda self, samples: None

class Swapped(Toy):
    name = "swapped"

    def neuron_groups(self, model):
        first = (Slot("linear1.weight", 0), Slot("linear2.bias", 0), Slot("linear2.weight", 1))
        second = (Slot("linear2.weight", 0), Slot("linear1.bias", 0), Slot("output.weight", 1))
        return [NeuronGroup("first", 16, first), NeuronGroup("second", 16, second)]

class Bad(LocalSGD):
    name = "bad"

    def step(self, batch):
        return super().step((batch[0][:, 1:], batch[1]))

class Unprepared(Toy):
    name = "unprepared"
    sources = ("web",)

    def prepare(self, data, cache, progress):
        return None

class Unfetched(Toy):
    name = "unfetched"
    sources = ("web",)
    fetch = lambda self, source, cache, progress: None
"""


@pytest.fixture
def own(tmp_path, istbench):
    """Runs a cell of the plug-in above, in one process."""
    plugin = tmp_path / "own.py"
    plugin.write_text(PLUGIN)

    def run(workload, *words, method="ddp"):
        return istbench(
            "run", "--plugin", plugin, "--workload", workload, "--method", method, "--steps", 1,
            "--out", tmp_path / "out", *words,
        )  # fmt: skip

    return run


def line_of(text):
    return next(number for number, line in enumerate(PLUGIN.splitlines(), start=1) if text in line)


@pytest.mark.processes
def test_a_model_that_needs_open_data_is_refused_with_the_order_of_calls(own):
    status, _, said = own("early")
    assert status == 2
    assert one_line(said) == (
        f"istbench: plug-in own.py, line {line_of('Linear(8')}, in build_model: AttributeError: 'Early' object "
        "has no attribute 'classes'; istbench also calls build_model before prepare and open: set its "
        "attributes in __init__ (docs/plugins.md, Order of calls)"
    )


@pytest.mark.processes
def test_a_metric_without_a_sure_direction_leaves_no_run_directory(own, tmp_path):
    status, _, said = own("perplexed")
    assert status == 2
    assert "workload 'perplexed': its metric 'perplexity' falls as a model gets better" in one_line(said)
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
def test_metrics_that_are_tensors_are_recorded_and_a_missing_one_is_refused(own):
    status, out, said = own("tensors", "--json")
    assert status == 0, said
    assert 0 <= json.loads(out)["final"]["accuracy"] <= 1
    status, _, said = own("missing")
    assert status == 2
    wanted = "istbench: workload 'missing': evaluate must return its metric 'accuracy'; it returns loss"
    assert one_line(said) == wanted


@pytest.mark.processes
def test_groups_that_fit_in_size_alone_are_refused_before_training(own, tmp_path):
    status, _, said = own("swapped", "--nodes", 2, method="ist")
    assert status == 2
    assert "workload 'swapped': neuron group 'first' does not fit the model" in one_line(said)
    assert "evaluation" not in next(tmp_path.glob("out/runs/*/events.jsonl")).read_text()


@pytest.mark.processes
def test_an_error_in_a_worker_is_the_line_of_the_plug_in(own, tmp_path):
    status, _, said = own("toy", method="bad")
    assert status == 1
    line = line_of("super().step(")
    where = f"istbench: worker 0 failed while warming up: plug-in own.py, line {line}, in step: RuntimeError: "
    assert one_line(said).startswith(where)
    assert said.splitlines()[-1] == one_line(said)
    (log,) = tmp_path.glob("out/runs/*/logs/rank-0/stderr.log")
    assert "Traceback" in log.read_text()


def test_a_plan_without_a_meta_batch_says_so(own, istbench, tmp_path):
    plan = ["plan", "--plugin", tmp_path / "own.py", "--method", "ddp", "--workload", "blank"]
    status, out, said = istbench(*plan)
    assert status == 0, said
    assert "workload 'blank' has no meta_batch (docs/plugins.md)" in " ".join(out.split())
    status, _, said = istbench(*[*plan[:-1], "early"])
    assert (status, "in build_model: AttributeError" in one_line(said)) == (2, True)


@pytest.mark.parametrize(
    ("workload", "given", "said"),
    [
        ("unprepared", True, ": prepare must return a DataSource, not None"),
        ("unprepared", False, " has no fetch(source, cache, progress); write it, or leave its sources out"),
        ("unfetched", False, ": fetch must return a DataSource, not None"),
    ],
)
def test_data_of_another_kind_is_refused_when_it_is_prepared(istbench, tmp_path, workload, given, said):
    (tmp_path / "own.py").write_text(PLUGIN)
    data = ["--data", tmp_path] if given else []
    status, out, refused = istbench("data", workload, "--plugin", tmp_path / "own.py", *data)
    assert (status, out, one_line(refused)) == (2, "", f"istbench: workload {workload!r}{said}")


def test_a_plug_in_that_does_not_load_names_its_line(istbench, tmp_path):
    for text, said in (
        ("import torch\n\nno_such_name\n", "line 3: NameError: name 'no_such_name' is not defined"),
        ("def f(:\n", "SyntaxError: invalid syntax"),
        (
            "from istbench.workloads.toy import Toy\nclass Own(Toy):\n    name = 'own'\n    Options = dict\n",
            "Own.Options must be a frozen dataclass",
        ),
    ):
        plugin = tmp_path / f"p{len(text)}.py"
        plugin.write_text(text)
        status, _, refused = istbench("list", "workloads", "--plugin", plugin)
        assert (status, said in one_line(refused)) == (2, True), refused
