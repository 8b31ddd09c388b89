"""Checks of a task file that need no processes."""

import pytest
from small_task import TASK

from istbench.base.errors import UserError
from istbench.fabric import FabricError
from istbench.studies.conformance.check import check_task, of_tasks

GROUPS = """
def neuron_groups(model):
    return {"hidden": [("0.weight", 0), ("0.bias", 0), ("2.weight", 1)]}
"""
OWN = """
from istbench.methods.ist import IndependentSubnetTraining

class Own(IndependentSubnetTraining):
    name = "own"
"""
WRONG = [
    ('{"accuracy": torch', '{"accuracy": 0 * float("inf") + torch', "accuracy is nan before training; it must be"),
    ('{"accuracy": torch', '{"accuracy": float("inf") + torch', "accuracy is inf before training; it must be"),
    (
        "batch_size = 16",
        "lower_is_better, targets = True, (0.9, 0.8)",
        "every target is reached before training: acc",
    ),
]


@pytest.fixture
def file(tmp_path):
    """Writes a task file of this code; returns it."""

    def write(code, name="mine.py"):
        path = tmp_path / name
        path.write_text(code)
        return path

    return write


@pytest.mark.parametrize(("old", "new", "said"), WRONG)
def test_a_metric_that_no_run_can_use_names_the_file_and_evaluate(file, old, new, said):
    task = of_tasks.opened_task(file(TASK.replace(old, new)))
    line = TASK.splitlines().index("def evaluate(model, batches):") + 1
    with pytest.raises(UserError) as refused:
        of_tasks.the_metric(task)
    assert str(refused.value).startswith(f"task file mine.py, line {line}, evaluate: {said}")


def test_written_groups_are_proved_and_files_without_them_have_no_such_check(file):
    assert of_tasks.the_neuron_groups not in of_tasks.checks_of(of_tasks.opened_task(file(TASK)))
    task = of_tasks.opened_task(file(TASK + GROUPS, "written.py"))
    assert of_tasks.checks_of(task)[-1] is of_tasks.the_neuron_groups
    assert of_tasks.the_neuron_groups(task) == "hidden (16); another order of their units changes nothing"
    task = of_tasks.opened_task(file(TASK + GROUPS.replace('("0.bias", 0), ', ""), "wrong.py"))
    with pytest.raises(
        UserError, match="another order of its units changes the result by .*no slot: 0.bias dimension 0"
    ):
        of_tasks.the_neuron_groups(task)


@pytest.mark.parametrize(("more", "supposed"), [("", True), ("\nsamples = 48\n", False)])
def test_samples_of_an_iterable_are_counted_as_if_every_batch_had_as_many_as_the_first(file, more, supposed):
    code = TASK.replace("    return TensorDataset", "    return torch.utils.data.DataLoader(TensorDataset").replace(
        "points[:, :4].argmax(1))", "points[:, :4].argmax(1)), 48)"
    )
    code = code.replace("batch_size = 16", "batch_size = 48")
    said = of_tasks.the_data(of_tasks.opened_task(file(code + more)))
    alike = " if every batch has as many as the first" if supposed else ""
    assert said.startswith(f"528 training and 144 test samples{alike}; a batch: ")
    assert " test samples; a batch" in of_tasks.the_data(of_tasks.opened_task(file(TASK, "set.py")))


def test_a_method_of_a_plug_in_deals_groups_too(file, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.setattr(of_tasks, "on_nodes", lambda *_, **__: [([""], False)])  # it trains
    ((name, outcome, said),) = of_tasks.by_methods(file(TASK), ["own"], 2, (str(tmp_path / "own.py"),))
    assert (name, outcome) == ("own", "holds")
    assert said.startswith(
        "trains; 98% of the parameters are dealt in 1 neuron group: 0 (16); a subnet scales the sums of 0 (16)"
    )


LOST = (["FabricError: rank 0 lost a connection"], True)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([LOST, (["line 7: no good"], False)], "line 7: no good"),
        ([(["line 7: no good"], False), LOST], "line 7: no good"),
        ([([""], False), (["line 7: no good"], False)], "line 7: no good"),
        ([LOST, LOST], LOST[0][0]),
    ],
)
def test_a_rank_that_only_lost_another_does_not_name_the_cause(file, monkeypatch, ranks, said):
    found = {1: [([""], False)], 2: ranks}
    monkeypatch.setattr(of_tasks, "on_nodes", lambda _function, nodes, *_, **__: found[nodes])
    assert list(of_tasks.by_methods(file(TASK), ["ddp"], 2, ())) == [("ddp", "failed", f"on 2 nodes: {said}")]


@pytest.mark.parametrize(
    ("error", "lost"), [(FabricError("rank 0 lost a connection"), True), (ValueError(), False)]
)
def test_a_rank_tells_whether_it_only_lost_another(file, monkeypatch, error, lost):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(of_tasks, "set_up", fail)
    (problem,), found = of_tasks.two_steps(None, str(file(TASK)), (), ["ddp", "ist"])
    assert (type(error).__name__ in problem, found) == (True, lost)


def test_an_exit_in_forward_is_one_line_of_the_check(file):
    quits = "class Quits(nn.Sequential):\n    def forward(self, x):\n        exit(3)\n\n\ndef model():\n"
    path = file(TASK.replace("def model():\n", quits).replace("return nn.Sequential", "return Quits"))
    failed = check_task(path)[-1]
    assert failed.detail == "task file mine.py, line 12, in forward: calls exit(3); it should return"
