"""Whatever fails in a task file, or in a library on its objects, is one line that names the file."""

import sys

import pytest
import torch
from torch import nn
from users_mistakes import MISTAKES

from istbench.base.error_lines import TRACEBACK, during, error_line, reason_of, said_by
from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.cluster.profile import load_profile
from istbench.launch.cells.resolve import prepare_cell
from istbench.node.registry import load_method
from istbench.node.rehearsal import rehearse
from istbench.plan.planner import make_plan
from istbench.studies.conformance.of_tasks import checks_of, opened_task

NEEDS_A_RUN = {  # honest code, or a mistake that only training on processes meets
    "model with a random generator", "model refuses its state", "parameter hook raises", "backward raises",
    "dataset raises late", "loss fails in a later step", "optimizer state raises", "model reads values",
    "forward quits in training", "evaluate of another shape", "batch of another type", "batches end early",
}  # fmt: skip


def planned(path, method):
    make_plan(RunRequest(workload=path, method=method, nodes=2), load_profile("m5.2xlarge"), limits=False)


def prepared(path, method):
    prepare_cell(RunRequest(workload=path, method=method, nodes=2, steps=2, threads=1), lambda *_: None)


def checked(path):
    task = opened_task(path)
    for check in checks_of(task):
        with during(f"checking {check.__name__}", task.place("model"), of_libraries=True):
            check(task)


def rehearsed(path, method):
    task = opened_task(path)
    with during("", task.place("model"), of_libraries=True):
        rehearse(task, load_method(method))


WAYS = {
    "plan": lambda path: planned(path, "ddp"),
    "plan of ist": lambda path: planned(path, "ist"),
    "before a run": lambda path: prepared(path, "ddp"),
    "before a run of ist": lambda path: prepared(path, "ist"),
    "check": checked,
    "in a worker": lambda path: rehearsed(path, "local_sgd"),
}


def line_of(way, path):
    """The line that a command shows for what `way` raises; empty if it raises nothing."""
    try:
        WAYS[way](path)
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException as error:
        line = str(error) if isinstance(error, UserError | RunFailed) else error_line(error)
        return line or f"bare: {error!r}"
    return ""


@pytest.mark.processes
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_file(tmp_path, mistake):
    path = tmp_path / "mine.py"
    path.write_text(MISTAKES[mistake])
    lines = {way: line_of(way, str(path)) for way in WAYS}
    for way, line in lines.items():
        if not line or line == "interrupted":
            continue
        assert "mine" in line, (way, line)
        assert len(line) < 600, (way, line)
        assert "\n" not in line, (way, line)
        assert "registered at" not in line, (way, line)
    assert any(lines.values()) or mistake in NEEDS_A_RUN


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    return None


def fails(text):
    def fail():
        raise RuntimeError(text)

    return fail


DUMP = """Could not run 'aten::empty' with arguments from the 'Meta' backend. This could be because the operator
doesn't exist for this backend, or was omitted.

CPU: registered at aten/src/ATen/RegisterCPU.cpp:31034 [kernel]"""
QUOTED = """Caught NameError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/lib/torch/worker.py", line 309, in _worker_loop
    data = fetcher.fetch(index)
NameError: name 'table' is not defined
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "RuntimeError"),
        ("a\nb", "RuntimeError: a"),
        (DUMP, "RuntimeError: Could not run 'aten::empty' with arguments from the 'Meta' backend"),
        (QUOTED, "NameError: name 'table' is not defined"),
        ("Error(s) in loading state_dict for Net:\n\tMissing key: one", "RuntimeError: Error(s) in loading state_dict for Net: Missing key: one"),  # noqa: E501
        ("word " * 100, f"RuntimeError: {'word ' * 47}word…"),
    ],
)  # fmt: skip
def test_the_text_of_an_error_is_one_short_line(text, said):
    assert said_by(RuntimeError(text)) == said


def test_an_error_without_a_text_has_its_type():
    class Odd(Exception):  # noqa: N818
        def __str__(self):
            raise ValueError

    assert said_by(Odd()) == "Odd"


def test_the_innermost_place_and_operation_count_and_the_type_stays():
    def fail():
        with (
            during("checking ddp", "task file t.py, line 9, data", "outer"),
            during("", "task file t.py, line 3, model"),
        ):
            fails("no good.")()

    error = raised(fail)
    assert type(error) is RuntimeError
    assert error_line(error) == "task file t.py, line 3, model, checking ddp: RuntimeError: no good; outer"
    assert reason_of(error) == error_line(error)


def test_errors_of_istbench_itself_and_of_its_own_workloads_stay_bare():
    def fail():
        with during("moving", ""):
            fails("a bug")()

    assert error_line(raised(fail)) is None
    with pytest.raises(UserError, match=r"^plain$"), during("moving", "task file t.py"):
        raise UserError("plain")


def test_an_error_that_code_of_istbench_raises_beside_libraries_stays_bare():
    def by_istbench():
        with during("planning ddp", "task file t.py", of_libraries=True):
            load_profile(None)

    def by_a_library():
        with during("planning ddp", "task file t.py", of_libraries=True):
            nn.Linear(1, 1)(torch.zeros(1, 2))

    assert error_line(raised(by_istbench)) is None
    assert error_line(raised(by_a_library)).startswith("task file t.py, planning ddp: RuntimeError: ")


def test_an_exit_of_user_code_is_an_error():
    assert reason_of(UserError("in words of its own")) == "in words of its own"
    said = r"^task file t.py, line 3, model: calls exit\(7\); it should return$"
    with pytest.raises(UserError, match=said), during("", "task file t.py, line 3, model"):
        sys.exit(7)


def test_the_whole_traceback_is_there_for_those_who_want_it(monkeypatch, capsys):
    def fail():
        with during("moving", "task file t.py, line 3, model"):
            fails("no good")()

    assert error_line(raised(fail))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(TRACEBACK, "1")
    error = raised(fail)
    assert error_line(error) == error_line(error)
    assert capsys.readouterr().err.count("Traceback (most recent call last)") == 1
