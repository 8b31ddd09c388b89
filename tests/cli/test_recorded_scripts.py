"""A recorded script on the command line: its clusters, links and methods."""

import json

import pytest
from script_records import script_record

from istbench.cluster.script_record import save_script

HERE = "machines like the one that recorded"


@pytest.fixture
def record(tmp_path):
    """Saves a record; returns its file."""

    def save(**changed):
        file = tmp_path / "train.record.json"
        save_script(script_record(memory_bytes=2**33, **changed), file)
        return file

    return save


def replayed(istbench, *arguments):
    status, out, err = istbench("replay", *arguments, "--nodes", "2", "--format", "json")
    assert status == 0, err
    (table,) = json.loads(out)["tables"]
    return [{**table["context"], **row} for row in table["rows"]]


def test_a_record_is_replayed_on_machines_like_the_one_that_recorded(istbench, record):
    """At a link that costs nothing a node takes the recorded seconds, here and not on m5.2xlarge."""
    file = record()
    (here,) = replayed(istbench, file, "--method", "ddp", "--bandwidth", "10 Tbit/s", "--latency", "0")
    assert here["cluster"] == f"{HERE} with 0 ms at 10 Tbit/s"
    assert here["step_s"] == pytest.approx(0.1, rel=0.05)
    (named,) = replayed(
        istbench, file, "--method", "ddp", "--cluster", "this", "--bandwidth", "10tbit", "--latency", "0s"
    )
    assert named["step_s"] == here["step_s"]
    (there,) = replayed(istbench, file, "--method", "ddp", "--cluster", "m5.2xlarge", "--bandwidth", "10tbit")
    assert there["step_s"] < 0.5 * here["step_s"]


def test_the_table_names_the_machines_first_and_links_that_nobody_named(istbench, record):
    file = record()
    status, out, _ = istbench("replay", file, "--method", "ddp", "--nodes", "2")
    assert status == 0
    text = " ".join(out.split())
    assert text.startswith("ddp on 2 nodes trains the most samples per second, ")
    assert f" times those of one node. Replayed on {HERE}" in text
    assert f"train.py on {HERE}" in text
    assert "links are those of m5.2xlarge: --bandwidth and --latency name yours" in " ".join(out.split())
    _, out, _ = istbench("replay", file, "--method", "ddp", "--nodes", "2", "--bandwidth", "1Gbps")
    assert "links are those of" not in " ".join(out.split())


def test_a_profile_of_two_lines_takes_the_rest_from_the_machine_that_recorded(istbench, record, tmp_path):
    (tmp_path / "office.toml").write_text('bandwidth = "1 Gbps"\nlatency = "20 ms"\n')
    file = record()
    (short,) = replayed(istbench, file, "--method", "ddp", "--cluster", tmp_path / "office.toml")
    assert short["cluster"] == "office"
    assert short["step_s"] > 0.1


@pytest.mark.parametrize(("latency", "told"), [("30ms", True), ("1 ms", True), ("0.1ms", False)])
def test_a_latency_at_which_replays_were_off_is_told(istbench, record, latency, told):
    file = record()
    for command in (["replay", file, "--nodes", "2"], ["plan", file, "--nodes", "2"]):
        _, out, _ = istbench(*command, "--method", "ddp", "--bandwidth", "1gbit", "--latency", latency)
        assert ("off a lab in the median" in " ".join(out.split())) == told


def test_rows_have_their_local_steps_and_the_fastest_is_first(istbench, record):
    rows = replayed(istbench, record(), "--method", "ddp,local_sgd local_steps=7", "--bandwidth", "10mbit")
    assert [(row["method"], row["local_steps"]) for row in rows] == [("local_sgd local_steps=7", 7), ("ddp", 1)]
    assert rows[0]["step_s"] < rows[1]["step_s"]


@pytest.mark.parametrize(("link", "close"), [("10tbit", True), ("10mbit", False)])
def test_rows_within_the_errors_of_replays_are_too_close_to_call(istbench, record, link, close):
    methods = ("--method", "ddp,local_sgd local_steps=7", "--nodes", "2")
    _, out, _ = istbench("replay", record(), *methods, "--bandwidth", link)
    answer = " ".join(out.split()).partition(" Replayed on ")[0]
    assert answer.endswith(" on 2 nodes is too close to call.") == close


def test_methods_that_cannot_train_a_clipping_script_are_not_offered(istbench, record):
    file = record(clips=True)
    rows = replayed(istbench, file, "--bandwidth", "1gbit")
    assert {"ddp", "fsdp", "local_sgd"} <= {row["method"] for row in rows}
    assert not {"p3", "parameter_server"} & {row["method"] for row in rows}
    for command in ("replay", "plan"):
        status, out, err = istbench(command, file, "--method", "p3")
        assert (status, out) == (2, "")
        assert "p3 updates a parameter before the last gradient is known, and train.py clips by the norm" in err


def test_a_plan_takes_links_and_machines_as_a_replay_does(istbench, record):
    file = record()
    plans = []
    for links in (("--bandwidth", "100 Mbps", "--latency", "20ms"), ("--bandwidth", "1e9"), ()):
        status, out, _ = istbench("plan", file, "--method", "ddp", "--nodes", "2", "--json", *links)
        assert status == 0
        plans.append(json.loads(out))
    slow, fast, unnamed = plans
    assert slow["cluster"] == f"{HERE} with 20 ms at 100 Mbit/s"
    assert slow["seconds_per_round"] > fast["seconds_per_round"]
    assert any("the links are those of m5.2xlarge" in phrase for phrase in unnamed["assumed"])


def test_this_cluster_is_for_records(istbench, tmp_path):
    for command in (["replay", tmp_path], ["map", tmp_path], ["plan", "--workload", "toy", "--method", "ddp"]):
        status, _, err = istbench(*command, "--cluster", "this")
        assert status == 2
        assert "the cluster `this` is for a file of `istbench record`" in err


def test_a_map_of_a_record_has_the_fastest_method_of_each_cell(istbench, record):
    asked = [
        "map",
        record(),
        "--method",
        "ddp,local_sgd local_steps=50",
        "--nodes",
        "2,4",
        "--bandwidth",
        "1mbit,10tbit",
    ]
    status, out, _ = istbench(*asked, "--json")
    cells = json.loads(out)
    assert status == 0
    assert [(cell["nodes"], cell["bandwidth"]) for cell in cells] == [
        (2, 1e6), (2, 1e13), (4, 1e6), (4, 1e13)
    ]  # fmt: skip
    assert {cell["winner"] for cell in cells[::2]} == {"local_sgd local_steps=50"}
    for cell in cells:
        assert cell["over_next"] >= 1
        assert cell["samples_over_one_node"] == pytest.approx(cell["nodes"] * 0.1 / cell["step_s"])
        assert cell["cluster"].startswith(HERE)
    status, table, _ = istbench(*asked)
    text = " ".join(table.split())
    assert text.startswith("The most samples per second of ddp and local_sgd local_steps=50: ")
    assert f"train.py on {HERE}: the most samples per second, replayed" in text
    assert "Timing only" in table


def test_a_number_of_nodes_that_no_method_fits_is_no_row_of_a_map(istbench, record):
    methods = ["--method", "local_sgd group=4", "--method", "diloco group=4"]
    status, out, err = istbench("map", record(), *methods, "--nodes", "2,4")
    assert status == 0
    assert "2 nodes" in out + err
    assert "Traceback" not in out + err


def test_a_map_of_a_record_by_latency_is_on_one_number_of_nodes(istbench, record):
    asked = [
        "map",
        record(),
        "--method",
        "ddp",
        "--bandwidth",
        "1gbit",
        "--by",
        "latency",
        "--latency",
        "1ms,20 ms",
    ]
    status, out, _ = istbench(*asked, "--json")
    cells = json.loads(out)
    assert (status, [(cell["latency_s"], cell["nodes"]) for cell in cells]) == (0, [(0.001, 4), (0.02, 4)])
    assert cells[0]["step_s"] < cells[1]["step_s"]
    for wrong, said in (
        (["--nodes", "2,4"], "a map by latency has one number of nodes"),
        (["--target", "0.7"], "--target is for recorded runs, not for a recorded script"),
    ):
        status, _, err = istbench(*asked, *wrong)
        assert (status, said in err) == (2, True)
