"""`istbench replay`, and the cluster that other commands show, as a user has them."""

import json
import subprocess
import sys

import pytest
from fake_runs import evaluation, header, write_plausible, write_run

TOY = ["run", "--method", "local_sgd", "--workload", "toy", "--nodes", 2]


@pytest.fixture
def results(tmp_path):
    for method in ("ddp", "local_sgd"):
        write_plausible(tmp_path / "results", method, traced=True)
    return tmp_path / "results"


def test_replay_prints_every_format_and_draws(results, istbench):
    asked = ["replay", results, "--cluster", "m5.2xlarge,p3.2xlarge", "--bandwidth", "100mbit,10gbit"]
    status, table, said = istbench(*asked, "--all")
    assert status == 0
    assert "where the replayed time goes on p3.2xlarge at 10 Gbit/s" in table
    assert "bandwidths where methods cross on m5.2xlarge" in table
    assert said.count("picture: ") == 2 * 2 + 2
    assert len(list((results / "report").glob("*-by-bandwidth-n2.svg"))) == 2
    status, text, _ = istbench(*asked, "--no-pictures", "--format", "json")
    tables = json.loads(text)["tables"]
    assert status == 0
    assert [t["context"]["host"] for t in tables[::2]][:2] == [
        "m5.2xlarge at 100 Mbit/s",
        "m5.2xlarge at 10 Gbit/s",
    ]
    _, text, _ = istbench(*asked, "--no-pictures", "--format", "csv")
    assert sum("m5.2xlarge at 10 Gbit/s" in line for line in text.splitlines()) == 2
    _, text, _ = istbench(*asked, "--no-pictures", "--format", "markdown")
    assert text.count("### ") == len(tables)


def test_each_latency_has_its_own_tables(results, istbench):
    asked = ["--cluster", "m5.2xlarge", "--bandwidth", "100mbit,1gbit", "--latency", "30ms,1ms", "--no-pictures"]
    status, text, _ = istbench("replay", results, *asked, "--format", "json")
    tables = json.loads(text)["tables"]
    assert status == 0
    assert list(dict.fromkeys(table["context"]["host"] for table in tables)) == [
        *(f"m5.2xlarge with 1 ms{bandwidth}" for bandwidth in (" at 100 Mbit/s", " at 1 Gbit/s")),
        *(f"m5.2xlarge with 30 ms{bandwidth}" for bandwidth in (" at 100 Mbit/s", " at 1 Gbit/s")),
        "m5.2xlarge with 1 ms",  # of bandwidths where methods cross
        "m5.2xlarge with 30 ms",
    ]


def test_replay_reads_one_run_and_a_profile_of_ones_own(results, tmp_path, istbench):
    status, fields, _ = istbench("list", "clusters", "--options")
    assert status == 0
    assert "    gflops = 350.0" in fields
    profile = tmp_path / "mine.toml"
    profile.write_text(
        'summary = "mine"\ngflops = 100\nsource = "measured"\nmemory_gib = 8\nbandwidth_out = "1gbit"\n'
        'bandwidth_in = "1gbit"\nlatency_s = 1e-4\noverhead_s = 0\nfull_duplex = true\nprice_per_hour = 0\n'
        'price_date = "2025-01"\nprice_source = "none"\n'
    )
    run = results / "runs" / "speech-ddp-n2-s0"
    status, table, _ = istbench("replay", run, "--cluster", profile, "--no-pictures")
    assert status == 0
    assert "on mine" in table
    assert not any(line.startswith("local_sgd") for line in table.splitlines())
    profile.write_text(profile.read_text().replace("gflops", "gflop"))
    status, _, said = istbench("replay", run, "--cluster", profile)
    assert status == 2
    assert "mine.toml, line 2: gflop: unknown name; did you mean 'gflops'?" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "m5.2xlage"], "unknown cluster 'm5.2xlage'; did you mean 'm5.2xlarge'"),
        (["--cluster", "none.toml"], "no file none.toml; give a cluster profile"),
        (["--cluster", ","], "--cluster is empty; see `istbench list clusters`"),
        (["--bandwidth", "fast"], "'fast' is not a bandwidth"),
        (["--bandwidth", "100mbit,0gbit"], "'0gbit' is not a bandwidth"),
        (["--bandwidth", ""], "--bandwidth is empty"),
        (["--latency", ","], "--latency is empty; 1ms,30ms are two"),
        (["--latency", "1ms,30"], "--latency: '30' has no unit"),
        (["--workload", "speach"], "did you mean 'speech'"),
        (["--metric", "loss"], "unknown metric "),
        (["--levels", ","], "--levels is empty; 0.7,0.75 are two"),
        (["--levels", "0.7,high"], "--levels must be a number, not 'high'"),
        (["--levels", "nan"], "--levels must be a finite number"),
        (["--baseline", "dpp"], "did you mean 'ddp'? Known: ddp, local_sgd"),
    ],
)
def test_replay_refuses_bad_input_in_one_line(results, istbench, arguments, message):
    status, _, said = istbench("replay", results, *arguments)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said


def test_replay_says_what_is_missing(results, tmp_path, istbench):
    status, _, said = istbench("replay", tmp_path / "nowhere")
    assert (status, f"nowhere/runs does not exist; {results} has some" in said) == (2, True)
    trace = results / "runs" / "speech-ddp-n2-s0" / "trace.npz"
    trace.write_bytes(trace.read_bytes()[:300])
    status, _, said = istbench("replay", trace.parent)
    assert (status, len(said.splitlines())) == (2, 1)
    assert "trace.npz is cut short or not a trace; record it again" in said
    status, _, said = istbench("replay", results, "--no-pictures")
    assert (status, "left out: speech-ddp-n2-s0: " in said) == (0, True)
    untraced = write_run(tmp_path / "short", header(), [evaluation(0, 0.0, 0.1), evaluation(5, 1.0, 0.2)])
    for path in (untraced.path, tmp_path / "short"):
        status, _, said = istbench("replay", path)
        assert (status, "two whole rounds of training" in said) == (2, True)


def test_report_shows_the_cluster_asked_for(results, istbench):
    status, table, _ = istbench("report", results, "--no-pictures", "--cluster", "p5.4xlarge")
    assert status == 0
    words = " ".join(table.split())
    assert words.index("measured on laptop") < words.index("replayed on p5.4xlarge")
    status, table, _ = istbench("report", results, "--no-pictures", "--cluster", "p5.4xlarge", "--all")
    assert table.index("train seconds to accuracy on laptop") < table.index("replayed seconds to accuracy on p5")


@pytest.mark.parametrize("command", [TOY, ["compare", "--workload", "toy"]])
def test_a_wrong_cluster_costs_no_training(command, tmp_path, istbench):
    status, _, said = istbench(*command, "--out", tmp_path / "out", "--cluster", "p3.2xlarg")
    assert (status, len(said.splitlines())) == (2, 1)
    assert "did you mean 'p3.2xlarge'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
def test_run_shows_cluster_seconds_and_the_cluster_names_no_cell(tmp_path, istbench):
    run = [*TOY, "--steps", 80, "--eval-every", 20, "--out", tmp_path]
    status, text, _ = istbench(*run, "--json")
    result = json.loads(text)
    assert (status, result["clock"], result["cluster"]["name"]) == (0, "train_s", "m5.2xlarge")
    assert result["cluster"]["seconds"] > 0
    assert result["cluster"]["dollars"] == pytest.approx(result["cluster"]["seconds"] * 2 * 0.384 / 3600)
    for target in result["targets"]:
        assert (target["cluster_s"] is None) == (target["train_s"] is None)
    status, table, said = istbench(*run, "--cluster", "home-100mbit")
    assert (status, "is done already" in said) == (0, True)
    for row in ("home-100mbit seconds  ", "home-100mbit seconds to accuracy 0.5", "home-100mbit dollars"):
        assert row in table


@pytest.mark.processes
def test_a_run_too_short_for_a_trace_says_so_and_has_nulls(tmp_path, istbench):
    status, text, said = istbench(*TOY, "--steps", 3, "--out", tmp_path, "--json")
    assert status == 0
    nothing = dict.fromkeys(("seconds", "dollars", "low", "high", "doubt"))
    assert json.loads(text)["cluster"] == {"name": "m5.2xlarge", **nothing}
    assert "no m5.2xlarge seconds: no trace to replay" in said


@pytest.mark.processes
def test_help_and_list_of_clusters_start_without_numba():
    code = (
        "import sys; from istbench.cli import main\n"
        "for arguments in (['replay', '--help'], ['list', 'clusters']):\n"
        "  try: main(arguments)\n"
        "  except SystemExit: print([n for n in ('numba', 'torch', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[]", "[]"]
