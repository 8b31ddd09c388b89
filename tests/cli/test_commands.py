"""`compare`, `report`, `list`, `data`, `check` and `doctor` as a user has them."""

import csv
import io
import json
import re

import pytest
from said import one_line

from istbench.cluster.message_ways import MessageWays
from istbench.cluster.profile import MessageCosts
from istbench.launch.processes import message_costs

SUITE = """
workload = "toy"
methods = ["ddp", {method = "ist", local_steps = 2}]
nodes = [2]
[run]
steps = 12
"""


@pytest.mark.processes
def test_compare_runs_a_suite_once_and_ends_in_table_and_pictures_and_report_prints_every_format(
    tmp_path, istbench
):
    (tmp_path / "suite.toml").write_text(SUITE)
    out = tmp_path / "out"
    asked = ["compare", tmp_path / "suite.toml", "--out", out, "--threads", 1]
    status, table, said = istbench(*asked, "--baseline", "ist local_steps=2")
    assert status == 0
    assert "SYNTHETIC" in table
    assert "ist local_steps=2" in table
    assert "speed-up over" in table
    assert said.count(": done") == 2
    for kind in ("png", "svg"):
        names = [path.stem for path in (out / "report").glob(f"toy-*.{kind}")]
        on_cluster = ["m5-2xlarge" in name for name in names if name.endswith("over-time")]
        assert sorted(on_cluster) == [False, True]
    threads = [json.loads(path.read_text())["config"]["threads"] for path in out.glob("runs/*/run.json")]
    assert threads == [1, 1]  # of the machine, beside the suite
    status, _, said = istbench(*asked)
    assert status == 0
    assert said.count(": done before") == 2
    formats = {}
    for style in ("table", "markdown", "csv", "json"):
        status, formats[style], _ = istbench("report", out, "--format", style, "--no-pictures")
        assert status == 0
    rows = json.loads(formats["json"])["tables"][0]["rows"]
    assert [row["method"] for row in rows] == ["ddp", "ist local_steps=2"]
    lines = csv.DictReader(io.StringIO(formats["csv"]))
    assert [line["clock"] for line in lines] == ["train_s", "train_s", "cluster_s", "cluster_s"]
    assert "| ---: |" in formats["markdown"]


@pytest.mark.processes
def test_compare_goes_on_after_a_failed_cell_and_says_so_at_the_end(tmp_path, istbench):
    plugin = tmp_path / "bad.py"
    plugin.write_text(
        "from istbench.methods.local_sgd import LocalSGD\n"
        "class Bad(LocalSGD):\n"
        "    name = 'bad'\n"
        "    def step(self, batch):\n"
        "        raise ValueError('no good')\n"
    )
    flags = ["--workload", "toy", "--steps", 4, "--plugin", plugin, "--out", tmp_path / "out"]
    status, table, said = istbench("compare", "--methods", "bad,ddp", *flags)
    assert status == 1
    assert "ddp" in table
    assert "worker" in said.splitlines()[-1] or "no good" in said
    assert "bad-n2-s0" in said
    (failed,) = (tmp_path / "out" / "runs").glob("toy-bad-*")
    assert json.loads((failed / "run.json").read_text())["status"] == "failed"
    assert list((failed / "logs").rglob("stderr.log"))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "ddp,isst"], "unknown method 'isst'; did you mean 'ist'"),
        (["--methods", ","], "--methods is empty"),
        (["--workload", "toy", "--nodes", "two"], "--nodes must be a whole number, not 'two'"),
        (["--workload", "toy", "--seeds", "0"], "--seeds': 0 is not in the range 1<=x<=10000"),
        (["--workload", "toy", "--set", "local_step=3"], "did you mean 'local_steps'"),
        (["--workload", "toy", "--baseline", "ddq"], "unknown --baseline 'ddq'; did you mean 'ddp'?"),
        (["--workload", "toy", "--baseline", "ddp lrr=3"], "option 'lrr' of ddp in --baseline; did you mean 'lr'?"),
        (["--workload", "toy", "--baseline", "ddp nodes=2"], "unknown option 'nodes' of ddp in --baseline"),
        (
            ["--workload", "toy", "--set", "lr=0.1", "--baseline", "ddp lr=0.3"],
            "--baseline 'ddp lr=0.3': no cell of ddp has lr=0.3; train one with it, or name ddp alone",
        ),
        (["none.toml"], "no file none.toml; give a TOML suite"),
        (["suite.toml", "--nodes", "2"], "leave out --nodes"),
        (["suite.toml", "--set", "lr=1"], "leave out --set, or the suite"),
        (["suite.toml", "--workload-set", "hidden=8"], "leave out --workload-set, or the suite"),
    ],
)
def test_compare_refuses_bad_input_in_one_line(tmp_path, istbench, arguments, message):
    status, _, said = istbench("compare", *arguments, "--out", tmp_path)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said


@pytest.mark.processes
def test_data_named_beside_a_suite_is_that_of_its_cells(tmp_path, istbench):
    (tmp_path / "suite.toml").write_text(SUITE)
    status, _, said = istbench("compare", tmp_path / "suite.toml", "--data", "/nowhere", "--out", tmp_path / "out")
    assert (status, len(said.splitlines())) == (2, 1)
    assert "leave out --data" in said


def test_report_without_runs_says_the_way_out(tmp_path, istbench):
    status, _, said = istbench("report", tmp_path)
    assert status == 2
    assert "istbench run" in said


def test_list_names_what_there_is(istbench, tmp_path):
    status, listed, _ = istbench("list", "methods", "--options")
    assert status == 0
    assert "local_steps=20" in listed
    status, listed, _ = istbench("list", "sinks")
    assert (status, "MLPerf's log lines in DIR/CELL.log" in listed) == (0, True)
    status, _, said = istbench("list", "clusers")
    assert status == 2
    assert "methods" in said
    status, _, said = istbench("list")
    assert status == 2
    assert "Choose from: methods, workloads, sinks, clusters, groups (see istbench list --help)" in one_line(said)
    status, listed, _ = istbench("list", "groups", "imagenet", "--workload-set", "model=vgg12")
    assert status == 0
    words = [line.split()[5:] for line in listed.splitlines()]
    assert words[-3:] == [[], ["late", "linear"], ["late", "linear", "default"]]
    status, listed, _ = istbench("list", "groups", "toy")
    assert (status, "default" in listed) == (0, False)  # ist deals all of them
    for words, way_out in (
        (["groups"], "istbench list groups WORKLOAD"),
        (["methods", "toy"], "leave out toy: only istbench list groups"),
        (["sinks", "--options"], "leave out --options: a sink has no options"),
        (["sinks", "--plugin", "mine.py"], "leave out --plugin: a sink has no options, and comes from"),
        (["groups", "translation"], "declares no neuron groups"),
    ):
        status, _, said = istbench("list", *words)
        assert (status, way_out in said) == (2, True)


def test_data_refuses_what_it_cannot_fetch(istbench):
    status, _, said = istbench("data", "toy")
    assert (status, "makes its own" in said) == (2, True)
    status, _, said = istbench("data", "speech", "--source", "sythetic")
    assert (status, "did you mean 'synthetic'" in said) == (2, True)


def test_check_reports_each_check_and_fails_if_one_does(istbench, tmp_path):
    status, outcomes, said = istbench("check", "toy")
    assert (status, outcomes.count("holds")) == (0, 7)
    assert "7 of 7 checks hold" in said
    status, _, said = istbench("check", "tooy")
    assert (status, "did you mean 'toy'" in said) == (2, True)
    for given, reason in (
        ("toy", "--set gives options of a method, and toy is none"),
        ("ddp", "accumulate must be"),
    ):
        status, _, said = istbench("check", given, "--set", "accumulate=no")
        assert (status, reason in said) == (2, True), said


@pytest.mark.processes
def test_doctor_finds_this_machine_fit(only_lab, istbench, monkeypatch):
    costs = MessageCosts(message_s=2e-4, next_s=5e-5, cpu_s_per_message=1e-5, cpu_s_per_byte=5e-10)
    ways = MessageWays(
        all_reduce=costs, transfer=costs, transport=costs, in_turns=costs
    )  # `lab validate` measures them
    monkeypatch.setattr(message_costs, "measure_message_costs", lambda: ways)
    status, findings, _ = istbench("doctor")
    assert status == 0
    assert "two workers averaged their ranks over gloo" in findings
    assert findings.count("on loopback, 200 us a message, 50 us until the next") == 3
    assert "broken" not in findings


def test_an_unknown_command_names_the_nearest(istbench):
    status, _, said = istbench("comapre")
    assert (status, "did you mean 'compare'" in said) == (2, True)


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("report --json", "'--json'; write --format json"),
        ("replay --json", "'--json'; write --format json"),
        ("plan --parameters 125M", "'--parameters'; `istbench estimate` takes numbers without a model"),
        ("plan --nods 3", "'--nods'. Did you mean '--nodes'?"),
    ],
)
def test_an_option_of_another_command_names_the_way(istbench, words, way):
    status, _, said = istbench(*words.split())
    assert status == 2
    assert said.startswith(f"istbench: No such option {way} (see istbench {words.split()[0]} --help)")


def test_the_target_of_advise_has_a_help_of_its_own(istbench):
    _, shown, _ = istbench("advise", "--help")
    assert "Stop when the metric" not in shown
    assert "Default: what one node reaches alone" in " ".join(shown.split())


@pytest.mark.processes
def test_compare_prints_one_json_object_and_is_quiet_where_asked(tmp_path, istbench):
    asked = ["compare", "--workload", "toy", "--methods", "ddp", "--steps", 8, "--out", tmp_path / "out"]
    status, out, said = istbench(*asked, "--json")
    found = json.loads(out)
    assert status == 0
    (cell,) = found["cells"]
    assert (cell["ended"], cell["failure"]) == ("done", None)
    assert cell["directory"] == str(tmp_path / "out" / "runs" / cell["cell"])
    assert [row["method"] for row in found["tables"][0]["rows"]] == ["ddp"]
    assert ": done" in said
    status, out, said = istbench(*asked, "--quiet", "--again")
    assert (status, said) == (0, "")
    assert out.startswith("ddp on 2 nodes is the first to reach accuracy ")
    below = out.splitlines()[-4:]
    assert [line.split(":")[0] for line in below if ": " in line][:1] == ["Data"]
    assert re.search(r"\d+ more lines: --explain", out)
