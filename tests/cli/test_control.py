"""The control of a method: `compare` runs it too, and a table without it says so. And a suite of it."""

import re
from pathlib import Path

import msgspec
import pytest
from fake_runs import header, ramp, write_run
from read_tables import footer, table_of

from istbench.api import cells
from istbench.api.cells import controls_of
from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.base.options.suite import read_suite
from istbench.launch.backends.here import Here
from istbench.launch.cells import controls
from istbench.launch.cells.known import KnownCell
from istbench.launch.cells.resolve import prepare_cell
from istbench.results.load import load_runs

SUITE = Path(__file__).parents[2] / "configs" / "paper" / "diloco.toml"


def request(method, nodes, **options):
    return RunRequest(workload="toy", method=method, nodes=nodes, method_options=options)


class OnlyTwo(Here):
    """As a lab of two nodes."""

    def fit(self, request):
        if request.nodes != 2:
            raise UserError(f"there are 2 nodes, not {request.nodes}")
        return request


def test_each_setting_of_a_method_gets_its_control_once(tmp_path):
    asked = [
        request("diloco", 2), request("diloco", 4), request("ddp", 2), request("diloco", 2, outer_lr=0.1),
        request("streaming_diloco", 2), request("streaming_diloco", 1),
    ]  # fmt: skip
    found, lines = controls_of(asked, Here(), tmp_path)
    assert found == [request("diloco", 1), request("diloco", 1, outer_lr=0.1)]
    assert lines == ["also runs diloco on 1 node, its control"]
    reason = "no control: diloco on 1 node: there are 2 nodes, not 1"
    assert controls_of(asked[:1], OnlyTwo(), tmp_path) == ([], [reason])


def test_the_controls_of_finished_cells_are_known_without_their_methods(tmp_path, monkeypatch):
    control_nodes = None

    def finished(requests, out):
        assert out == tmp_path
        return [KnownCell(state="", cell="", source=None, control_nodes=control_nodes) for _ in requests]

    monkeypatch.setattr(cells, "finished", finished)
    monkeypatch.setattr(controls, "load_method", None)
    assert controls_of([request("diloco", 2)], Here(), tmp_path) == ([], [])
    control_nodes = 1
    assert controls_of([request("diloco", 2)], Here(), tmp_path)[0] == [request("diloco", 1)]


def test_a_table_without_the_control_says_so_in_a_line(results):
    write_run(results, header("ddp", nodes=2), ramp(9.0))
    for options in ("outer_lr=0.1", ""):
        write_run(results, header("diloco", nodes=2, options=options, control_nodes=1), ramp(9.0))
    write_run(results, header("diloco", nodes=1, options="outer_lr=0.1", control_nodes=1), ramp(9.0))
    (line,) = [line for line in table_of(results).footer if line.startswith("Control:")]
    assert "the row of diloco on 1 node is missing" in line
    write_run(results, header("diloco", nodes=1, control_nodes=1), ramp(9.0))
    assert "Control:" not in footer(table_of(results))


def test_the_suite_has_the_cells_of_the_published_table(tmp_path):
    (suite,) = read_suite(SUITE)
    requests = suite.requests()
    assert len(requests) == 3 * 25
    assert len(controls_of(requests, Here(), tmp_path)[0]) == 3 * 24
    settings = {(own.method_options.get("local_steps"), own.method_options.get("outer_lr")) for own in requests}
    assert settings == {(None, None), *((k, rate) for k in (1, 4, 16, 64) for rate in (0.1, 0.3, 0.7))}
    diloco = next(own for own in requests if own.method == "diloco")
    cell = prepare_cell(msgspec.structs.replace(diloco, threads=1), lambda *_: None)
    assert "schedule=constant" in cell.method_label
    assert cell.config.method_options["beta2"] == 0.95
    assert cell.control_nodes == 1
    assert cell.budget == "256 steps"


@pytest.mark.processes
def test_a_small_form_of_the_suite_ends_in_a_table_with_the_control(tmp_path, istbench):
    text = SUITE.read_text()
    own = '{method = "diloco", local_steps = 4, outer_lr = 0.3, outer_rule = "smol"}'
    assert own in text
    text = re.sub(r"methods = \[.*?\n\]", f"methods = [{own}]", text, flags=re.DOTALL)
    for name, value in {
        "nodes": "[2]",
        "seeds": 1,
        "context": 16,
        "batch_size": 4,
        "steps": 6,
        "eval_every": 4,
    }.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
    text = text.replace("layers = 2", "layers = 1\nwidth = 8\nheads = 2")
    (tmp_path / "suite.toml").write_text(text)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 30)
    asked = ["compare", tmp_path / "suite.toml", "--data", tmp_path / "text.txt", "--threads", 1, "--out", tmp_path]
    status, table, said = istbench(*asked)
    assert status == 0
    assert "also runs diloco on 1 node, its control" in said
    assert len(list((tmp_path / "runs").glob("text-diloco-n[12]-s0-*/run.json"))) == 2
    assert "Control:" not in table
    assert "local_steps=4" in table


@pytest.mark.processes
def test_controls_stand_beside_the_rows_that_they_control(tmp_path, istbench):
    methods = "ist,local_sgd,ddp"
    asked = ["--methods", methods, "--workload", "toy", "--nodes", 2, "--steps", 8, "--threads", 1, "--controls"]
    status, table, said = istbench("compare", *asked, "--out", tmp_path, "--explain")
    assert status == 0
    assert "also runs ddp on 2 nodes with hidden=8: the width of a subnet of ist" in said
    assert "ddp, hidden 8: a subnet's width" in table
    assert "the whole network is as wide as a subnet" in " ".join(table.split())
    rows = {row[0].value: row for row in table_of(tmp_path).rows}
    assert [row[0].value for row in table_of(tmp_path).rows if row[1].value == 1] == ["ddp"]
    assert "also runs ddp on 1 node, to see if one machine is enough" in said
    assert "One machine" in " ".join(table.split())
    assert list(rows) == [
        "ddp", "ddp accumulate=4", "ddp hidden=8", "ist", "local_sgd", "local_sgd hidden=8"
    ]  # fmt: skip
    sent = {
        run.header.method_label: run.curve.evaluations[-1].bytes_sent_per_node
        for run in load_runs(tmp_path)[0]
        if run.header.workload_label == "toy" and run.header.nodes == 2
    }
    assert sent["ddp accumulate=4"] == sent["local_sgd"] == sent["ddp"] / 4 > 0
