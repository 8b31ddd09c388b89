"""What a method cannot take of a task file is refused in one line, before any process starts."""

import pytest

from istbench.base.error_lines import error_line
from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.cluster.profile import load_profile
from istbench.launch.cells.resolve import prepare_cell
from istbench.plan.planner import make_plan

TASK = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))

def data(train):
    return [(torch.ones(4, 2), torch.ones(4, 1))] * 3

def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()
"""
OPTIMIZER = "\ndef optimizer(parameters):\n    return torch.optim.AdamW(parameters)\n"
GROUPS = """
def neuron_groups(model):
    return {"hidden": [("0.weight", 0), ("0.bias", 0), ("2.weight", 1)]}
"""


def prepared(tmp_path, code, method="ddp", **options):
    (tmp_path / "mine.py").write_text(code)
    return prepare_cell(
        RunRequest(workload=str(tmp_path / "mine.py"), method=method, **{"steps": 2, **options}), lambda *_: None
    )


@pytest.mark.parametrize(
    ("more", "request_of", "said"),
    [
        (
            OPTIMIZER,
            {"method": "p3"},
            "p3 updates slices of parameters on their servers, so it cannot step the",
        ),
        (OPTIMIZER, {"method": "zero"}, "zero builds an optimizer over the parameters of each node, so it cannot"),
        (OPTIMIZER, {"method": "fsdp"}, "fsdp cuts parameters by rows, and updates the rows of each node, so it"),
        (
            OPTIMIZER + GROUPS,
            {"method": "ist"},
            "ist sends the optimizer's state with its units, so it cannot step",
        ),
        (OPTIMIZER, {"method_options": {"lr": "0.1"}}, "--set lr: mine has an optimizer of its own; set it there"),
        ("", {"batch_size": 5}, "--batch-size 5: the data of mine yields batches of 4 samples itself; change it"),
        ("", {"nodes": 4}, "batch size 4 is larger than a node's data: 12 training samples over 4 nodes"),
        ("", {"method": "dslide"}, "dslide splits a wide softmax over the nodes, and workload 'mine' has none"),
        ("", {"workload_options": {"hidden": "3"}}, "unknown option 'hidden' of workload 'mine'"),
    ],
)
def test_one_line_says_why(tmp_path, more, request_of, said):
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, TASK + more, **request_of)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_a_directory_of_data_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"task file mine\.py opens its own data in data.train.; leave out"):
        prepared(tmp_path, TASK, data=tmp_path)


def test_the_files_own_groups_and_optimizer_are_taken(tmp_path):
    assert prepared(tmp_path, TASK + GROUPS, method="ist", nodes=2).parameters == 33
    for method in ("ddp", "local_sgd"):
        assert prepared(tmp_path, TASK + OPTIMIZER, method=method, nodes=2).config.method == method


MARKED = """
def model():
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    for number, own in enumerate(net.parameters()):
        own.rate, own.mask = 0.1 * number, torch.ones_like(own)
    net[0].weight.requires_grad_(False)
    VALUES
    return net

class Own(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for own in group["params"]:
                if own.grad is not None:
                    own.grad.mul_(own.mask)
        STEPPED
        return super().step(closure)

def optimizer(parameters):
    assert len(parameters) == 4
    return Own([{"params": [own], "lr": own.rate} for own in parameters], lr=0.1, momentum=0.9)
"""


@pytest.mark.parametrize("method", ["ddp", "local_sgd"])
@pytest.mark.parametrize("values", ["", "net[0].bias.sum().item()"])
def test_an_optimizer_reads_attributes_of_all_parameters_before_a_run_and_in_a_plan(tmp_path, method, values):
    code = TASK + MARKED.replace("VALUES", values).replace("STEPPED", "")
    assert prepared(tmp_path, code, method=method, nodes=2).config.method == method
    request = RunRequest(workload=str(tmp_path / "mine.py"), method=method, nodes=2)
    memory = make_plan(request, load_profile("m5.2xlarge"), limits=False).memory
    assert memory.optimizer_state == 4 * (8 + 8 + 1)  # of what trains


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "noloco"])
@pytest.mark.parametrize(
    "code",
    [
        MARKED.replace("VALUES", "").replace("STEPPED", "own.grad.norm().item()"),
        MARKED.replace("VALUES", "").replace("STEPPED", "own.grad.numpy()"),
        OPTIMIZER.replace("AdamW(parameters", "AdamW(parameters, fused=True"),
    ],
)
def test_an_optimizer_that_reads_values_is_taken_and_a_plan_leaves_its_memory_out(tmp_path, method, code):
    assert prepared(tmp_path, TASK + code, method=method, nodes=2).config.method == method
    request = RunRequest(workload=str(tmp_path / "mine.py"), method=method, nodes=2)
    planned = make_plan(request, load_profile("m5.2xlarge"), limits=False)
    assert planned.memory.optimizer_state == 0
    assert "the optimizer's memory is unknown, since it needs values" in planned.assumed


@pytest.mark.parametrize("wrong", ["lr='fast'", "learning_rate=1", "lr=-1"])
def test_an_optimizer_that_fails_is_refused_before_a_run_and_by_a_plan(tmp_path, wrong):
    code = TASK + f"def optimizer(parameters):\n    return torch.optim.SGD(parameters, {wrong})\n"
    with pytest.raises((TypeError, ValueError)) as raised:
        prepared(tmp_path, code, method="ddp", nodes=2)
    assert "in optimizer" in error_line(raised.value)
    request = RunRequest(workload=str(tmp_path / "mine.py"), method="ddp", nodes=2)
    with pytest.raises(type(raised.value)):
        make_plan(request, load_profile("m5.2xlarge"), limits=False)


@pytest.mark.parametrize(("more", "supposed"), [("", True), ("samples = 4\n", False)])
def test_the_count_of_an_iterables_samples_is_called_supposed(tmp_path, more, supposed):
    source = prepared(tmp_path, TASK + more).data_source
    assert source.seen.endswith("24 samples if every batch has as many as the first" if supposed else "24 samples")
    assert ("; samples are counted as if every batch had as many as the first; " in source.note) == supposed


def test_groups_with_fewer_units_than_nodes_are_named_before_a_run_and_in_a_plan(tmp_path):
    code = TASK.replace("nn.Linear(8, 1))", "nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, 1))").replace("ReLU", "Tanh")
    line = "neuron groups with fewer units than the 3 nodes stay whole: 2 (2)"
    source = prepared(tmp_path, code, method="ist", nodes=3).data_source
    assert source.note.endswith(f"4 samples in a minibatch of a node, 12 in a step of 3 nodes; {line}")
    alone = prepared(tmp_path, code, method="ddp", nodes=1).data_source
    assert alone.note.endswith("4 samples in a minibatch of a node, 4 in a step of 1 node")
    path, cluster = str(tmp_path / "mine.py"), load_profile("m5.2xlarge")
    planned = make_plan(RunRequest(workload=path, method="ist", nodes=3), cluster, limits=False)
    assert line in planned.assumed


def test_an_error_in_model_names_the_line_and_nothing_of_plug_ins(tmp_path):
    with pytest.raises(ZeroDivisionError) as raised:
        prepared(tmp_path, TASK.replace("return nn.Sequential", "1 / 0\n    return nn.Sequential"))
    assert error_line(raised.value) == "task file mine.py, line 6, in model: ZeroDivisionError: division by zero"


def test_a_value_error_in_loss_names_its_line_also_where_ist_looks_for_groups(tmp_path):
    with pytest.raises(ValueError, match="not enough values") as raised:
        prepared(tmp_path, TASK.replace("return (model", "a, b, c = batch\n    return (model"), method="ist")
    line = error_line(raised.value)
    place = "task file mine.py, line 12, in loss, looking for neuron groups in the model"
    assert line.startswith(f"{place}: ValueError: not enough values to unpack")


def test_written_groups_of_any_size_are_tried_before_any_process_starts(tmp_path):
    wide = TASK.replace("8", "1100000")  # a worker tries none of this size
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, wide + GROUPS.replace('("0.bias", 0), ', ""), method="ist")
    assert str(refused.value).startswith(
        "task file mine.py, line 14, neuron_groups: neuron group 'hidden' does not fit the model: another order of "
        "its units changes the result by "
    )
    assert "dimensions of this size in no slot: 0.bias dimension 0; list every" in str(refused.value)


def test_written_groups_that_cannot_be_tried_are_named_before_a_run(tmp_path):
    noisy = TASK.replace(".mean()", ".mean() * random.random()").replace("import torch\n", "import random, torch\n")
    note = prepared(tmp_path, noisy + GROUPS, method="ist").data_source.note
    assert note.endswith(
        "; neuron groups of mine.py are not proved: two runs of the same model give different results"
    )
