"""Options from text, cells' names, suites from TOML: errors name the thing, the place and the way out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from istbench.base.decode import decode_own, encode_own
from istbench.base.errors import UserError
from istbench.base.options import run
from istbench.base.options.elastic import Elastic
from istbench.base.options.interval import Interval
from istbench.base.options.options import build_options, parse_pairs
from istbench.base.options.run import (
    COMPUTING,
    LABELLED,
    MAY_DIFFER_BY_HOST,
    OF_MACHINE,
    TELLING_APART,
    RunConfig,
    RunRequest,
)
from istbench.base.options.shares import Shares
from istbench.base.options.suite import read_suite


@dataclass(frozen=True, kw_only=True)
class Options:
    local_steps: int = 20
    lr: float = 0.1
    nesterov: bool = False
    optimizer: Literal["sgd", "adam"] = "sgd"
    clip: float | None = None
    betas: tuple[float, ...] = (0.9, 0.999)
    sizes: tuple[int, ...] = ()


def build(**texts):
    return build_options(Options, texts, "method 'ist'", {})


def test_options_are_parsed_to_their_types():
    options = build(local_steps="40", lr="1e-2", nesterov="true", optimizer="adam", clip="3")
    assert options == Options(local_steps=40, lr=0.01, nesterov=True, optimizer="adam", clip=3.0)


def test_defaults_of_the_workload_lie_under_what_is_typed():
    options = build_options(Options, {"lr": "0.5"}, "x", {"lr": 0.2, "local_steps": 4, "unknown": 1})
    assert options == Options(lr=0.5, local_steps=4)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"local_step": "40"}, "unknown option 'local_step' of method 'ist'; did you mean 'local_steps'?"),
        ({"local_steps": "4.5"}, "local_steps must be a whole number, not '4.5'"),
        ({"local_steps": "many"}, "local_steps must be a whole number"),
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"nesterov": "maybe"}, "nesterov must be true or false"),
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, not 'lion'"),
        ({"lr": "1e16"}, "lr must be a number of at most 1e\\+15, not 1e\\+16"),
        ({"betas": (0.9, float("nan"))}, "betas must be a number of at most 1e\\+15, not nan"),
        ({"betas": "0.9,1e16"}, "betas must be a number of at most 1e\\+15, not 1e\\+16"),
        ({"sizes": f"1,{2**53 + 1}"}, "sizes must be a whole number of at most"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(texts, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        build(**texts)


def test_pairs():
    assert parse_pairs(["a=1", "b = x=y"], "--set") == {"a": "1", "b": "x=y"}
    with pytest.raises(UserError, match="--set 'a' is not of the form name=value"):
        parse_pairs(["a"], "--set")


@pytest.mark.parametrize(
    ("field", "value"),
    [("nodes", 0), ("steps", -1), ("batch_size", 0), ("epochs", 0.0), ("eval_every", -2), ("timeout_s", 0)],
)
def test_a_request_refuses_what_is_not_above_zero(field, value):
    with pytest.raises(UserError, match=f"{field} must be (a whole number|a number|local steps)"):
        RunRequest(workload="toy", method="ist", **{field: value})


def test_a_request_refuses_what_contradicts():
    with pytest.raises(UserError, match="--steps or --epochs"):
        RunRequest(workload="toy", method="ist", steps=3, epochs=1)
    with pytest.raises(UserError, match="target must be a finite number, not inf"):
        RunRequest(workload="toy", method="ist", target=float("inf"))
    assert [RunRequest(workload="toy", method="ist", target=level).target for level in (-77, 0, 1.9)] == [
        -77,
        0,
        1.9,
    ]


def test_lists_of_options_follow_from_the_flags_of_their_rows():
    assert set(OF_MACHINE) == {"data", "device", "threads", "timeout_s", "checkpoint_every_s", "anyway"}
    assert LABELLED == ("amp", "channels_last", "compile", "shares", "elastic")
    assert set(COMPUTING) == {"amp", "channels_last", "compile", "shares", "elastic", "threads", "lab"}
    assert set(TELLING_APART) == {
        "steps", "eval_every", "amp", "channels_last", "compile", "shares", "elastic", "threads", "code",
    }  # fmt: skip
    assert set(MAY_DIFFER_BY_HOST) == {"threads", "plugins", "sinks", "save"}


CONFIG = RunConfig(
    workload="toy", method="ist", nodes=2, seed=1, workload_options={"hidden": 8}, method_options={"lr": 0.1},
    batch_size=16, steps=10, eval_every=Interval(steps=5), max_seconds=None, target=None, device="cpu", threads=1,
)  # fmt: skip


def test_a_config_survives_json_and_names_its_cell():
    plain = msgspec.json.encode(CONFIG, enc_hook=encode_own)
    assert msgspec.json.decode(plain, type=RunConfig, dec_hook=decode_own) == CONFIG
    name = CONFIG.cell("abc")
    assert name.startswith("toy-ist-n2-s1-")
    assert name == CONFIG.cell("abc")
    assert name == msgspec.structs.replace(CONFIG, timeout_s=5).cell("abc")


def test_a_field_without_a_value_is_not_in_the_name(monkeypatch):
    """So a new option renames no finished cell."""
    named = []
    monkeypatch.setattr(run.json, "dumps", lambda values, **_: named.append(values) or "")
    CONFIG.cell("abc")
    assert {"seed", "threads", "data"} <= named[0].keys()
    assert named[0].keys().isdisjoint({"target", "amp", "shares", "elastic", "faults", "lab", "timeout_s"})


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 11}, {"method_options": {"lr": 0.2}}, {"target": 0.5}, {"threads": 2}, {"code": "4f"},
        {"amp": "bf16"}, {"amp": "fp16"}, {"channels_last": True}, {"compile": True},
        {"elastic": Elastic(1, 2)}, {"shares": Shares()}, {"shares": Shares((1, 2))},
    ],
)  # fmt: skip
def test_what_defines_a_cell_changes_its_name(change):
    assert msgspec.structs.replace(CONFIG, **change).cell("abc") != CONFIG.cell("abc")
    assert CONFIG.cell("abc") != CONFIG.cell("other data")


def suite(tmp_path, text):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return read_suite(path)


def test_a_suite_is_methods_by_nodes_by_seeds(tmp_path):
    (read,) = suite(
        tmp_path,
        'workload = "toy"\nmethods = ["ddp", {method = "ist", local_steps = 40}]\nnodes = [2, 4]\nseeds = 2\n'
        "[run]\nsteps = 5\n[workload_options]\nhidden = 8\n",
    )
    requests = read.requests()
    assert len(requests) == 8
    assert [(r.method, r.nodes, r.seed) for r in requests[:5]] == [
        ("ddp", 2, 0), ("ist", 2, 0), ("ddp", 4, 0), ("ist", 4, 0), ("ddp", 2, 1),
    ]  # fmt: skip
    assert requests[1].method_options == {"local_steps": 40}
    assert all(request.steps == 5 and request.workload_options == {"hidden": 8} for request in requests)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('workload = "toy"\nmethods = ]\n', "line 2: not TOML"),
        ('methods = ["ist"]', "line 1: workload is missing"),
        ('workload = "toy"\nmethods = ["ist"]\nnode = [2]', "did you mean 'nodes'"),
        ('workload = "toy"\nmethods = ["ist"]\n[run]\nstep = 2', "did you mean 'steps'"),
        ('workload = "toy"\nmethods = [3]', "methods\\[0\\] must be text or a table, not 3"),
        (
            'workload = "toy"\nmethods = ["ist"]\nnodes = ["two"]',
            "line 3: nodes\\[0\\] must be a whole number, not 'two'",
        ),
    ],
)
def test_a_wrong_suite_names_the_file_and_what_is_wrong(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        suite(tmp_path, text)
    assert "suite.toml" in str(caught.value)


def test_a_missing_suite(tmp_path):
    with pytest.raises(UserError, match="no file .*none.toml; give a TOML suite"):
        read_suite(tmp_path / "none.toml")


def test_a_task_file_is_no_suite():
    with pytest.raises(UserError, match="^my.py is a task file, not a suite; `istbench compare --workload my.py`"):
        read_suite(Path("my.py"))


def test_a_suite_names_no_file_of_code(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text('workload = "results/evil.py"\nmethods = ["ddp"]\n')
    line = (
        r"suite.toml, line 1: workload is the file 'results/evil.py', .*: write workload = 'evil' and .* --plugin$"
    )
    with pytest.raises(UserError, match=line):
        read_suite(suite)
