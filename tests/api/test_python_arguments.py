"""Arguments of Python: a wrong one is refused in one line, which names it as Python does."""

import re

import numpy as np
import pytest
import torch
from fake_runs import write_plausible

import istbench
from istbench.api.arguments import in_python
from istbench.base.errors import RunFailed, UserError
from istbench.launch.backends.here import Here

GARBAGE = (object(), b"x", -1, 1.5, "\0", [None], {"x": None}, True, None, float("nan"), 10**400)


@pytest.fixture
def recorded(results):
    for method in ("ddp", "local_sgd"):
        write_plausible(results, method, traced=True)
    return istbench.load(results)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lower the learning rate (--set lr=...)", 'lower the learning rate (method_options={"lr": ...})'),
        ("use --set schedule=cosine", 'use method_options={"schedule": "cosine"}'),
        ("--set average_optimizer: no", "method_options average_optimizer: no"),
        ("--timeout 300 s; give a longer --timeout", "timeout_s=300 s; give a longer timeout_s"),
        ("device cuda: none; use --device cpu", 'device cuda: none; use device="cpu"'),
        ("--amp bf16: no; use --amp fp16", 'amp="bf16": no; use amp="fp16"'),
        ("--elastic 2:4 goes on by --restarts 10", 'elastic="2:4" goes on by restarts=10'),
        ("--batch-size 64: the data", "batch_size=64: the data"),
        ("or try --anyway", "or try anyway=True"),
        ("--compile: no; leave --compile out", "compile: no; leave compile out"),
        ("leave out --data, or give --data DIR", "leave out data, or give data=DIR"),
        ("run the cell again with --again", "run the cell again with again=True"),
        ("`istbench run ... --out x` makes one", "`istbench run ... --out x` makes one"),
        ("pip install --upgrade numba", "pip install --upgrade numba"),
    ],
)  # fmt: skip
def test_errors_name_arguments_in_place_of_flags(text, said):
    assert in_python(text) == said
    assert in_python(said) == said


def test_every_flag_of_a_run_has_its_name_in_python():
    flags = " ".join(f"{option.flag};" for option in istbench.api.arguments.RUN_OPTIONS)
    assert "--" not in in_python(flags)


def test_a_text_is_no_level_and_the_line_says_so(recorded):
    with pytest.raises(UserError, match=r"^target must be a number, not 'x'$"):
        recorded.time_to("x")
    with pytest.raises(
        UserError, match=r"^unknown argument 'metrics' of load; did you mean 'metric'\? Known: base"
    ):
        istbench.load(recorded.path, metrics="loss")
    with pytest.raises(
        UserError, match="^bandwidth must be a text, a number or a list, each a text or a number, not"
    ):
        recorded.replay(bandwidth=None)
    with pytest.raises(UserError, match="^estimate needs bandwidth, the link"):
        istbench.estimate("125M", "220ms", 2)
    with pytest.raises(UserError, match="^advise needs the network: give bandwidth=.1gbit., or cluster="):
        istbench.advise("toy", 2)
    with pytest.raises(UserError, match="^gpus_per_host=99: no host has more than"):
        istbench.estimate("125M", "220ms", 2, bandwidth="1gbit", gpus_per_host=99)


def test_compare_names_all_that_no_suite_takes():
    with pytest.raises(
        UserError, match="^the suite names the cells: leave out nodes, workload_options, epochs, or"
    ):
        istbench.compare("quick", nodes=4, workload_options={"hidden": 8}, epochs=2, data="/nowhere")


def test_numbers_of_numpy_and_pandas_are_numbers(recorded):
    assert list(recorded.time_to(np.float32(0.5)).reached) == [1, 1]
    frame = recorded.replay(bandwidth=np.array([1e8, 1e9]), nodes=recorded.runs.nodes.unique()).time_to(0.5)
    assert frame.cluster.nunique() == 2


class _Trained(Exception):  # noqa: N818
    """The arguments were taken: training would begin."""


CALLS = {
    "run": (istbench.run, {"workload": "toy", "method": "ddp"}),
    "compare": (istbench.compare, {"workload": "toy"}),
    "advise": (istbench.advise, {"workload": "toy", "nodes": 2, "bandwidth": 1e9, "minutes": 0.1}),
    "estimate": (istbench.estimate, {"parameters": 1e6, "step": 1, "nodes": 2, "bandwidth": 1e9, "methods": "ddp"}),
    "load": (istbench.load, {}),
    "record": (istbench.record, {"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)}),
}  # fmt: skip


def _said(call, given, name, value):
    """The line of the error for this argument; empty where the value is a fine one for this name."""
    try:
        call(**{**given, name: value})
    except (UserError, RunFailed) as error:
        return str(error)
    except _Trained:
        pass
    return ""


def _check_garbage(call, given, names):
    for name in names:
        for value in GARBAGE:
            line = _said(call, given, name, value)
            assert "\n" not in line
            assert not re.search(r"--(bandwidth|cluster|nodes|target|out|methods?|step)\b", line)


@pytest.mark.parametrize("function", CALLS)
def test_garbage_in_any_argument_is_one_line(function, recorded, tmp_path, monkeypatch):
    def train(*_given, **_named):
        raise _Trained

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Here, "begin", train)
    call, given = CALLS[function]
    given = {"path": recorded.path, **given} if function == "load" else given
    names = [name for name in call.__annotations__ if name not in ("return", "options")]
    assert len(names) > 1
    _check_garbage(call, given, names)


@pytest.mark.parametrize("method", ["time_to", "replay", "map", "fails", "page"])
def test_garbage_for_a_method_of_results_is_one_line(method, recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"fails": {"condition": "final < 0"}}.get(method, {})
    call = getattr(recorded, method)
    _check_garbage(call, given, [name for name in call.__annotations__ if name != "return"])
