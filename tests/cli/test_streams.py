"""Standard output and standard error that are closed, full, a closed pipe, or ASCII alone. Real descriptors."""

import functools
import json
import os
import shlex
import subprocess
import sys

import pytest
from fake_runs import write_plausible
from said import one_line

from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

FULL = "No space left on device"
TOY = ["run", "--workload", "toy", "--method", "ist", "--nodes", 1, "--steps", 1, "--out"]  # no replay


def in_shell(words, redirected="", **environment):
    """`istbench words` in a shell that redirects what it prints; (status, stdout, stderr)."""
    command = f"{shlex.join([sys.executable, '-m', 'istbench', *map(str, words)])} {redirected}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    results = tmp_path_factory.mktemp("several") / "results"
    for method in ("ddp", "ist"):
        for seed in (0, 1):
            write_plausible(results, method, seed=seed)
    return results


@pytest.mark.parametrize("words", [["list", "methods"], ["--help"], ["list", "clusters", "--options"]])
@pytest.mark.parametrize(("redirected", "why"), [(">/dev/full", FULL), (">&-", "it is closed")])
def test_a_standard_output_that_takes_nothing_is_one_line_and_status_1(words, redirected, why):
    status, _, said = in_shell(words, redirected)
    assert status == 1
    assert said == f"istbench: cannot write to standard output: {why}; fix this and run the same command again\n"


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_a_report_on_a_full_standard_output_is_one_line(several, form):
    words = ["report", several, "--no-pictures", "--format", form]
    status, _, said = in_shell(words, ">/dev/full")
    assert status == 1
    assert FULL in one_line(said)


def test_a_reader_that_goes_away_is_no_error(several):
    for words in (["list", "clusters", "--options"], ["report", several, "--no-pictures", "--format", "markdown"]):
        status, _, said = in_shell(words, "| true; exit ${PIPESTATUS[0]}")
        assert (status, "Broken" in said, "istbench: " in said) == (0, False, False)


listed_as_ever = functools.cache(lambda: in_shell(["list", "clusters"])[:2])


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-", "2> >(true)"])
def test_a_standard_error_that_takes_nothing_changes_no_status_and_no_output(redirected):
    assert in_shell(["report", "nowhere"], redirected)[:2] == (2, "")
    status, listed, _ = in_shell(["list", "clusters"], redirected)
    assert (status, listed) == listed_as_ever()


def test_a_run_trains_to_its_end_whatever_is_closed_and_says_where_its_results_are(tmp_path):
    status, _, said = in_shell([*TOY, tmp_path], ">&-")
    assert status == 1
    assert one_line(said) == (
        "istbench: cannot write to standard output: it is closed; results are safe in "
        f"{tmp_path}, and `istbench report {tmp_path}` prints them again"
    )
    (run,) = tmp_path.glob("runs/*")
    assert RunDirectory(run).header().status == "done"
    status, _, said = in_shell([*TOY, tmp_path, "--json"], ">/dev/full")
    assert (status, FULL in one_line(said)) == (1, True)
    status, printed, _ = in_shell([*TOY, tmp_path, "--again", "--json"], "<&- 2>&-")
    assert (status, json.loads(printed)["status"]) == (0, "done")


@pytest.fixture(scope="module")
def in_utf8(several):
    """A report as UTF-8 writes it."""
    status, whole, _ = in_shell(["report", several, "--no-pictures"], PYTHONIOENCODING="utf-8")
    assert (status, "×" in whole, "–" in whole) == (0, True, True)
    return whole


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
)
def test_an_ascii_terminal_gets_the_same_text_in_ascii(several, in_utf8, environment):
    status, plain, said = in_shell(["report", several, "--no-pictures"], **environment)
    assert (status, plain.isascii(), "Traceback" in said) == (0, True, False)
    speed_ups = [word for word in in_utf8.split() if "×" in word]
    assert [word.replace("×", "x").replace("–", "-") for word in speed_ups] == [
        word for word in plain.split() if word[0].isdigit() and "x" in word and "xlarge" not in word
    ]


def test_a_name_that_ascii_cannot_write_is_written_by_its_codes():
    status, _, said = in_shell(["run", "--method", "ist", "--workload", "töy"], PYTHONIOENCODING="ascii")
    assert (status, said.isascii()) == (2, True)
    assert one_line(said).startswith(r"istbench: unknown workload 't\xf6y'; did you mean 'toy'?")
