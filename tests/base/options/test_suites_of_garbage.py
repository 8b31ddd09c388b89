"""Whatever a suite's file holds, it is read, or refused in one line that names it."""

import os
from pathlib import Path

import pytest
from garbage import VALUES, as_toml, damaged, nested, one_line, quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.base.options.run import RUN_OPTIONS
from istbench.base.options.suite import MOST_CELLS, read_suite

RUN = {
    "held_out": 0.1, "tuned": 20,
    "batch_size": 16, "steps": 40, "max_seconds": 3.5, "target": 0.7, "eval_every": "30s", "device": "cpu",
    "threads": 1, "timeout_s": 30.0, "checkpoint_every_s": 0.0, "data": "somewhere",
    "amp": "bf16", "channels_last": True, "compile": False, "anyway": True, "shares": "speed",
}  # fmt: skip
SUITE = {
    "workload": "toy", "methods": ["ddp", {"method": "ist", "local_steps": 40, "lr": 0.1}], "nodes": [2, 4],
    "seeds": [0, 1], "workload_options": {"hidden": 8}, "run": RUN,
}  # fmt: skip


def read(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "suite.toml"
    path.write_bytes(content)
    try:
        suites = read_suite(path)
    except UserError as error:
        refused = one_line(error)
    else:
        refused = ""
    if refused:
        assert "suite.toml" in refused
        return None
    requests = [request for suite in suites for request in suite.requests()]
    assert 0 < len(requests) <= MOST_CELLS
    return requests


def test_the_suite_that_is_damaged_below_is_sound_and_has_every_option(tmp_path_factory):
    assert len(read(tmp_path_factory, as_toml(SUITE).encode())) == 8
    assert RUN.keys() | {"epochs"} == {option.name for option in RUN_OPTIONS if option.in_suites}


@quick(150)
@given(suite=damaged(SUITE))
def test_a_damaged_suite(tmp_path_factory, suite):
    without = read(tmp_path_factory, as_toml(suite).encode())
    assert read(tmp_path_factory, b"\xef\xbb\xbf" + as_toml(suite).encode()) == without  # a byte-order mark


@quick(40)
@given(suite=damaged({"suite": [SUITE, SUITE]}))
def test_damage_in_a_list_of_suites(tmp_path_factory, suite):
    read(tmp_path_factory, as_toml(suite).encode())


@quick(80)
@given(name=st.sampled_from(sorted({*RUN, "epochs"})), value=VALUES)
def test_any_value_for_any_option(tmp_path_factory, name, value):
    run = {key: part for key, part in RUN.items() if name != "epochs" or key != "steps"}
    read(tmp_path_factory, as_toml({**SUITE, "run": {**run, name: value}}).encode())


@quick(100)
@given(content=st.binary(max_size=200))
def test_bytes(tmp_path_factory, content):
    read(tmp_path_factory, content)


@pytest.mark.parametrize("text", [f"a = {nested('[', ']')}", f"a = {nested('{b = ', '}')}", nested("[", "]")])
def test_nesting(tmp_path_factory, text):
    assert read(tmp_path_factory, text.encode()) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: workload is missing"),
        ("[[suite]]\n", r"suite\[0\].workload is missing"),
        ('workload = "toy"\nmethods = []', "line 2: methods must have at least 1 of them"),
        ('workload = "toy"\nmethods = ["ist"]\nseeds = 0', "line 3: seeds must be a whole number of at least 1"),
        ('workload = "toy"\nmethods = ["ist"]\nseeds = 1_000_000_000', "seeds must be a whole number of at most"),
        ('workload = "toy"\nmethods = ["ist", "ddp"]\nseeds = 9000', "has 18,000 cells, more than"),
        ('workload = "toy"\nmethods = ["ist"]\nnodes = []', "line 3: nodes must have at least 1"),
        ('workload = "toy"\nmethods = ["ist"]\n[run]\nsteps = true', "line 4: run.steps must be a whole number"),
        ('workload = "toy"\nmethods = ["ist"]\n[run]\nsteps = 3.0', "line 4: run.steps must be a whole number"),
        ('workload = "toy"\nmethods = ["ist"]\n[run]\nsteps = 3\nepochs = 1', "line 5: run.epochs stands beside"),
        (
            '[[suite]]\nworkload = "toy"\nmethods = ["ist"]\n[suite.run]\nsteps = 3\n'
            '[[suite]]\nworkload = "toy"\nmethods = ["ist"]\n[suite.run]\nsteps = 0\n',
            r"line 10: suite\[1\].run.steps must be a whole number of at least 1, not 0",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, message):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_suite(path)
    one_line(caught.value)


def test_a_pipe_for_a_suite_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "suite.toml")
    with pytest.raises(UserError, match="suite.toml is a pipe, not a file"):
        read_suite(tmp_path / "suite.toml")
    with pytest.raises(UserError, match="is a directory, not a file"):
        read_suite(tmp_path)
    with pytest.raises(UserError, match="not the name of a file|no file"):
        read_suite(Path("a\0b"))
