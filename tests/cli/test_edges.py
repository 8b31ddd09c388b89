"""The command line at its edges: without arguments, lists with spaces, and places that people mean otherwise."""

import subprocess
import sys

import pytest
from fake_runs import header, ramp, write_plausible, write_run
from said import one_line

from istbench.base.options.run import RUN_OPTIONS
from istbench.cli.options import SECTIONS


@pytest.fixture
def results(tmp_path):
    write_plausible(tmp_path / "results", "ddp", traced=True)
    return tmp_path / "results"


def test_a_baseline_without_a_finished_run_is_refused_before_training(istbench, tmp_path):
    write_run(tmp_path / "before", header("ddp", status="interrupted"), [])
    words = ["compare", "smoke", "--out", tmp_path / "now", "--fail-if", "final < baseline"]
    status, _, err = istbench(*words, "--baseline-results", tmp_path / "before")
    assert (status, "has no finished run" in one_line(err)) == (2, True)
    assert not (tmp_path / "now").exists()


@pytest.mark.parametrize("command", [(), ("new",), ("lab",), ("engine",)])
def test_alone_a_command_with_more_to_say_prints_its_help(istbench, command):
    status, out, err = istbench(*command)
    assert (status, err) == (0, "")
    assert out.startswith(" ".join(["Usage: istbench", *command]))
    assert len(out.splitlines()) > 5
    assert out.rstrip("\n") == istbench(*command, "--help")[1].rstrip("\n")


@pytest.mark.processes
def test_a_shell_completes_commands_and_options():
    def complete(words, **environment):
        asked = {
            "_ISTBENCH_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        found = subprocess.run(
            [sys.executable, "-m", "istbench"],
            env={**asked, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stderr == ""
        return found.stdout

    assert "complete -o nosort -F _istbench_completion istbench" in complete("", _ISTBENCH_COMPLETE="bash_source")
    assert complete("istbench re").split() == [
        "plain,record", "plain,replay", "plain,reproduce", "plain,report", "plain,retrace"
    ]  # fmt: skip
    assert "plain,--bandwidth" in complete("istbench plan --b").split()
    assert complete("istbench pan --b") is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--workload", "toy", "--nodes", "2", "4"], "; a list has commas: --nodes 2,4"),
        (["replay", "--nodes", "16", "64", "256"], "; a list has commas: --nodes 16,64,256"),
        (["map", "--bandwidth", "1gbit", "10gbit"], "; a list has commas: --bandwidth 1gbit,10gbit"),
    ],
)
def test_a_list_with_spaces_is_refused_with_its_commas(istbench, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = istbench(*arguments)
    assert (status, out) == (2, "")
    assert one_line(err).endswith(said)
    assert "commas" not in istbench("run", "--method", "ddp", "--workload", "toy", "--nodes", "2", "4")[2]


def test_the_runs_of_a_results_directory_stand_for_it(istbench, results):
    status, table, _ = istbench("report", results / "runs", "--no-pictures")
    assert (status, table) == (0, istbench("report", results, "--no-pictures")[1])
    assert istbench("replay", results / "runs", "--format", "csv")[0] == 0
    assert (results / "report").is_dir()
    assert not (results / "runs" / "report").exists()


def test_a_page_without_a_directory_is_refused_before_the_work(istbench, tmp_path):
    for command in (["report", tmp_path / "none"], ["advise", "toy", "--nodes", "2", "--bandwidth", "1gbit"]):
        status, out, err = istbench(*command, "--html", tmp_path / "absent" / "x.html")
        assert (status, out) == (2, "")
        assert f"there is no directory {tmp_path / 'absent'}; make it" in one_line(err)


def test_a_target_in_percent_is_refused_by_a_map_as_by_a_run(istbench, results):
    for command in (["map", results, "--target", "77"], ["report", results, "--levels", "77"]):
        status, out, err = istbench(*command)
        assert (status, out) == (2, "")
        assert "77: the targets of speech are shares, accuracy" in one_line(err)
        assert "write 77 % as 0.77" in err


def test_an_unfinished_run_of_its_own_kind_does_not_head_a_report(istbench, results):
    write_run(results, header(workload="a-probe", status="interrupted"), ramp(2.0))
    status, table, _ = istbench("report", results, "--no-pictures")
    assert status == 0
    assert table.splitlines()[0].startswith("speech")
    assert "a-probe" in table


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_the_help_of_a_long_command_has_sections_and_two_examples(istbench, command):
    status, out, _ = istbench(command, "--help")
    lines = out.splitlines()
    assert status == 0
    assert [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        *SECTIONS,
        "Results",
    ]
    assert sum(line.startswith(f"  istbench {command} ") for line in lines) == 2
    listed = lines[lines.index("What to train:") :]
    options = [line.split()[0] for line in listed if line.startswith("  -")]
    assert len(options) == len(set(options)) > 30
    assert options[options.index("--steps") :][:3] == ["--steps", "--epochs", "--max-seconds"]
    assert options[options.index("--data") :][:2] == ["--data", "--device"]


def test_an_option_of_a_run_has_its_section():
    placed = [name for names in SECTIONS.values() for name in names]
    assert {option.name for option in RUN_OPTIONS} <= {*placed, "save"}
    assert len(placed) == len(set(placed))
