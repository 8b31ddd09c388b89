"""Whatever is typed for an option, it is taken, or refused in one line with status 2 before anything starts."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from garbage import WORDS, one_line, quick
from hypothesis import example, given
from hypothesis import strategies as st

from istbench.base.options.run import RUN_OPTIONS
from istbench.cli import main
from istbench.launch.cells import execute

FLAGS = [option.flag for option in RUN_OPTIONS]
TOY = ["--method", "ist", "--workload", "toy"]
METHOD_OPTIONS = [
    "local_steps", "lr", "momentum", "weight_decay", "optimizer", "nesterov", "schedule", "warmup", "decay_at",
    "decay",
]  # fmt: skip
WORKLOAD_OPTIONS = ["hidden", "layers", "features", "classes", "samples", "batch_norm", "bias"]


class Reached(Exception):  # noqa: N818
    """The command was taken and would have trained."""


@pytest.fixture(autouse=True, scope="module")
def nothing_trains():
    def refuse(*_, **__):
        raise Reached

    patch = pytest.MonkeyPatch()
    patch.setattr(execute, "execute", refuse)
    yield
    patch.undo()


def ask(*words):
    """Run the command; returns its one line, or None where it was taken."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as stderr:
        try:
            main(list(words))
        except Reached:
            return None
        except SystemExit as ended:
            status = ended.code
    said = [line for line in stderr.getvalue().splitlines() if line.startswith("istbench: ")]
    if status == 0:
        return None  # help was asked for
    assert status == 2
    assert len(said) == 1
    return one_line(said[0])


@pytest.mark.processes
@quick(150)
@given(flag=st.sampled_from([*FLAGS, "--method", "--workload", "--out", "--cluster", "--plugin"]), word=WORDS)
@example(flag="--seed", word=str(2**64))
@example(flag="--steps", word="9" * 400)
@example(flag="--epochs", word="1e300")
@example(flag="--max-seconds", word="nan")
@example(flag="--threads", word="100000")
@example(flag="--checkpoint-every", word="inf")
def test_any_word_for_any_option_of_run(tmp_path_factory, flag, word):
    out = ["--out", str(tmp_path_factory.getbasetemp() / "out")]
    ask("run", *TOY, *out, flag, word)


@pytest.mark.processes
@quick(80)
@given(name=st.sampled_from(METHOD_OPTIONS), word=WORDS)
@example(name="lr", word="1e300")
@example(name="lr", word="nan")
@example(name="local_steps", word="9" * 400)
def test_any_word_for_a_method_option(tmp_path_factory, name, word):
    ask("run", *TOY, "--out", str(tmp_path_factory.getbasetemp() / "out"), "--set", f"{name}={word}")


@pytest.mark.processes
@quick(60)
@given(name=st.sampled_from(WORKLOAD_OPTIONS), word=WORDS)
@example(name="layers", word="100000")
@example(name="samples", word="1000000000000")
@example(name="hidden", word="2000000")
@example(name="samples", word="1")
def test_any_word_for_a_workload_option(tmp_path_factory, name, word):
    out = str(tmp_path_factory.getbasetemp() / "out")
    ask("run", *TOY, "--out", out, "--workload-set", f"{name}={word}")


@quick(60)
@given(
    flag=st.sampled_from(["--methods", "--nodes", "--seeds", "--workload", "--eval-every", "--set", "--cluster"]),
    word=WORDS,
)
@example(flag="--seeds", word="1000000000")
@example(flag="--nodes", word="2,nan")
def test_any_word_for_an_option_of_compare(tmp_path_factory, flag, word):
    # Lists of sound words would train.
    out = str(tmp_path_factory.getbasetemp() / "out")
    ask("compare", "--workload", "toy", "--methods", "isst", "--out", out, flag, word)


@quick(80)
@given(
    command=st.sampled_from(["report", "replay", "timeline"]),
    flag=st.sampled_from(
        [
            "--cluster",
            "--bandwidth",
            "--round",
            "--baseline",
            "--workload",
            "--metric",
            "--levels",
            "--format",
            "--out",
        ]
    ),
    word=WORDS,
)
def test_any_word_for_an_option_of_a_report(tmp_path_factory, command, flag, word):
    ask(command, str(tmp_path_factory.getbasetemp() / "nothing-here"), flag, word)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", str(2**64)], "--seed must be a whole number of at most 9223372036854775807"),
        (["--steps", "9" * 400], "--steps must be a whole number of at most"),
        (["--steps", "2.5"], "--steps must be a whole number, not '2.5'"),
        (["--epochs", "nan"], "--epochs must be a number"),
        (["--target", "77"], "--target 77: the targets of toy are shares, accuracy 0.5, 0.8; write 77 % as 0.77"),
        (["--target", "inf"], "--target must be a finite number, not 'inf'"),
        (["--eval-every", "soon"], "--eval-every must be local steps, such as 200, or train seconds, such as 30s"),
        (["--set", "lr=1", "--set", "lr=2"], "--set 'lr' is given twice"),
        (["--set", "lr=nan"], "option lr must be a number"),
        (["--workload-set", "hidden=1e300"], "option hidden must be a whole number"),
    ],
)
def test_what_is_refused_is_said(tmp_path, words, message):
    assert message in ask("run", *TOY, "--out", str(tmp_path), *words)


@pytest.mark.parametrize("words", [["run", *TOY, "--data"], ["run", *TOY, "--out"], ["report"], ["compare"]])
def test_a_name_that_is_not_utf_8_is_refused(words, istbench):
    status, _, said = istbench(*words, os.fsdecode(b"caf\xe9"))  # as Python hands it on
    assert (status, len(said.splitlines())) == (2, 1)
    assert "UTF-8" in said


@pytest.mark.processes
def test_a_name_that_is_not_utf_8_is_refused_by_the_command():
    command = [os.fsencode(word) for word in [sys.executable, "-m", "istbench", "report"]]
    done = subprocess.run([*command, b"caf\xe9"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "UTF-8" in done.stderr
