"""What a cell is, from what was asked."""

import contextlib
import subprocess
import sys

import pytest

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.launch.cells import resolve
from istbench.launch.cells.resolve import prepare_cell, prepare_cells
from istbench.results.header import Git

WORKLOAD = "from istbench.workloads.toy import Toy\nclass Mine(Toy):\n    name = 'mine'\n"
METHOD = "from istbench.methods.local_sgd import LocalSGD\nclass Also(LocalSGD):\n    name = 'also'\n"


def prepare(plugin, workload="toy", method="ddp"):
    return prepare_cell(
        RunRequest(workload=workload, method=method, plugins=(str(plugin),) if plugin else ()), lambda *_: None
    )


def test_an_edited_plug_in_is_another_cell_and_none_of_istbenchs_own(tmp_path):
    first, edited = tmp_path / "first.py", tmp_path / "edited.py"
    first.write_text(WORKLOAD + METHOD)
    edited.write_text(WORKLOAD + METHOD + "# edited\n")
    for workload, method in (("mine", "ddp"), ("toy", "also"), ("mine", "also")):
        before, after = (prepare(plugin, workload, method) for plugin in (first, edited))
        assert before.cell.startswith(f"{workload}-{method}-n1-s0-")
        assert before.cell != after.cell
        assert before.config.code != after.config.code
        assert len(before.config.code) == 12
    assert prepare(first).cell == prepare(None).cell
    assert prepare(first).config.code == ""


@pytest.mark.processes
def test_the_commit_is_of_a_repository_that_has_istbench(tmp_path, monkeypatch):
    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    file = tmp_path / "venv" / "resolve.py"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setattr(resolve, "__file__", str(file))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "other code")
    assert resolve._git_state.__wrapped__() is None
    git("add", ".")
    git("commit", "-q", "-m", "istbench")
    assert resolve._git_state.__wrapped__() == Git(commit=git("rev-parse", "HEAD"), dirty=False)
    file.write_text("changed")
    assert resolve._git_state.__wrapped__().dirty


def test_a_workload_that_would_end_the_program_has_failed(tmp_path):
    plugin = tmp_path / "ends.py"
    plugin.write_text(WORKLOAD + "    def build_model(self):\n        raise SystemExit(0)\n")
    with pytest.raises(RunFailed, match=r"^mine by ddp called exit\(0\) before training$"):
        prepare(plugin, "mine")


def test_a_method_is_checked_against_the_sizes_of_the_data(tmp_path):
    text = "12 4 7000\n" + "".join(f"{label} 0:1\n" for label in range(12))
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "test.txt").write_text(text)

    def asked(active):
        options = {"target_active": active}
        return RunRequest(
            workload="amazon670k", method="dslide", method_options=options, data=tmp_path, batch_size=4
        )

    assert prepare_cell(asked(6_500), lambda *_: None).config.method_options["target_active"] == 6_500
    with pytest.raises(UserError, match="target_active=7,001 is more than the 7,000 outputs"):
        prepare_cell(asked(7_001), lambda *_: None)


@pytest.mark.parametrize(
    ("method", "options", "told"),
    [
        ("ddp", {}, (1, 1, False)), ("ddp", {"accumulate": 4}, (4, 1, False)),
        ("zero", {"accumulate": 2, "compress": "bf16"}, (2, 1, True)), ("fsdp", {"accumulate": 4}, (4, 1, False)),
        ("parameter_server", {"accumulation_steps": 2}, (1, 1, False)), ("ist", {"local_steps": 7}, (1, 1, False)),
        ("local_sgd", {"local_steps": 7}, (1, 7, False)), ("local_sgd", {"ddp_rounds": 1}, (1, 1, False)),
        ("streaming_diloco", {"send": "int8"}, (1, 1, True)), ("sparseloco", {}, (1, 1, True)),
    ],
)  # fmt: skip
def test_a_header_says_what_reports_ask_of_a_method(method, options, told):
    request = RunRequest(workload="toy", method=method, nodes=2, method_options=options, steps=4, device="cpu")
    header = prepare_cell(request, lambda *_: None)
    assert (header.minibatches_a_step, header.accumulation, header.compresses) == told


COUNTING = """
from istbench.base.errors import UserError
from istbench.methods.local_sgd import LocalSGD
from istbench.workloads.toy import Toy
BUILT = []
class Counted(LocalSGD):
    name = 'counted'
    def __init__(self, *options, **named):
        super().__init__(*options, **named)
        BUILT.append('method')
    @classmethod
    def check(cls, options, model, workload, world_size):
        BUILT.append('check')
        if world_size > 8:
            raise UserError('at most 8 nodes')
class Mine(Toy):
    name = 'mine'
    def prepare(self, *asked):
        BUILT.append('data')
        return super().prepare(*asked)
"""


@pytest.mark.parametrize(("nodes", "built"), [(2, ["method", "check", "data"]), (9, ["method", "check"])])
def test_each_thing_is_built_once_and_refused_before_the_data(tmp_path, nodes, built):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(COUNTING)
    request = RunRequest(workload="mine", method="counted", nodes=nodes, plugins=(str(plugin),))
    with contextlib.nullcontext() if nodes <= 8 else pytest.raises(UserError, match="at most 8 nodes"):
        prepare_cell(request, lambda *_: None)
    (module,) = (module for name, module in sys.modules.items() if f"{tmp_path.name}_plugin_" in name)
    assert built == module.BUILT


def test_the_method_streaming_ist_has_cells_of_its_own():
    request = RunRequest(workload="toy", method="streaming_ist", nodes=2, method_options={"flight_steps": 2})
    cell = prepare_cell(request, lambda *_: None)
    assert cell.cell.startswith("toy-streaming_ist-n2-s0-")
    assert cell.method_label == "streaming_ist flight_steps=2"


@pytest.mark.parametrize("method", ["ddp", "ist"])
@pytest.mark.parametrize("given", [{}, {"held_out": 0.2}, {"workload_options": {"batch_norm": True}}])
def test_cells_that_are_resolved_together_are_those_resolved_alone(method, given):
    requests = [
        RunRequest(workload="toy", method=method, nodes=nodes, seed=seed, method_options={"lr": rate}, **given)
        for seed in (0, 3)
        for nodes in (1, 2)
        for rate in (0.1, 0.2)
    ]
    together = prepare_cells(requests, lambda *_: None)
    assert together == [prepare_cell(request, lambda *_: None) for request in requests]
    assert len({cell.cell for cell in together}) == len(requests)


def test_cells_of_a_workload_share_it_and_seeds_alone_build_nothing(tmp_path):
    plugin = tmp_path / "shared.py"
    plugin.write_text(COUNTING)
    requests = [
        RunRequest(workload="mine", method="counted", nodes=nodes, seed=seed, plugins=(str(plugin),))
        for seed in range(3)
        for nodes in (2, 4)
    ]
    prepare_cells(requests, lambda *_: None)
    (module,) = (module for name, module in sys.modules.items() if f"{tmp_path.name}_shared_" in name)
    assert module.BUILT == ["method", "check", "data", "method", "check"]


def test_a_request_that_cannot_run_is_refused_among_others():
    requests = [RunRequest(workload="toy", method="ddp", batch_size=size, seed=size) for size in (1, 2, 100_000)]
    with pytest.raises(UserError, match="batch size 100000 is larger than a node's data"):
        prepare_cells(requests, lambda *_: None)


def test_the_command_tells_how_many_of_very_many_cells_are_resolved():
    told = []
    for count in (99, 100):
        prepare_cells(
            [RunRequest(workload="toy", method="ddp", seed=seed) for seed in range(count)],
            lambda what, done, total: told.append((what, done, total)),
        )
    assert told == [("cells resolved", done, 100) for done in range(1, 101)]


def test_more_evaluations_than_a_run_may_record_are_refused_before_it_trains():
    def asked(every, **more):
        given = {"steps": 10**6, "eval_every": Interval(steps=every), **more}
        return prepare_cell(RunRequest(workload="toy", method="ddp", nodes=2, **given), lambda *_: None)

    with pytest.raises(UserError, match=r"1,000,000 evaluations, more than .* use --eval-every 4 or more"):
        asked(1)
    assert asked(4).config.eval_every == Interval(steps=4)
    assert asked(1, max_seconds=10.0).config.steps == 10**6
