"""The command that makes a run again."""

import shlex
from pathlib import Path

import msgspec
import pytest
from fake_runs import header

from istbench.base.decode import decode_own
from istbench.base.options.elastic import Elastic
from istbench.base.options.run import Lab, LabHosts, RunRequest, Uplink
from istbench.cli.options import take_backend
from istbench.cli.run_command import command
from istbench.launch.cells.resolve import prepare_cell
from istbench.report.page import rerun_command
from istbench.results.header import Header
from istbench.workloads.toy import Toy


def requested(words):
    """The request that a command line makes."""
    with command.make_context("run", list(words)) as context:
        given = {name: value for name, value in context.params.items() if name not in _NOT_OF_CELL}
        return take_backend(given).fit(RunRequest(**given))


_NOT_OF_CELL = ("out", "cluster", "again", "as_json", "explain")


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "ist", "steps": 30, "nodes": 2, "seed": 3, "method_options": {"lr": "0.3"}},
        {"method": "ddp", "steps": 30, "nodes": 4, "elastic": Elastic.decode("2:4")},
        {"method": "ddp", "epochs": 1.5, "target": 0.7, "eval_every": "2s", "amp": "bf16"},
        {"method": "local_sgd", "workload_options": {"hidden": "32"}, "max_seconds": 9.0, "threads": 1},
    ],
)
def test_the_command_names_the_same_cell_and_the_same_budget(fields):
    cell = prepare_cell(RunRequest(workload="toy", **fields), lambda *_: None)
    first, *words = shlex.split(rerun_command(cell))
    assert (first, words[0]) == ("istbench", "run")
    again = prepare_cell(requested(words[1:]), lambda *_: None)
    assert again.cell == cell.cell
    for name in ("budget", "method_label", "workload_label"):
        assert getattr(again, name) == getattr(cell, name)


def test_a_default_of_the_workload_is_recorded_and_another_value_is_made_again(monkeypatch):
    monkeypatch.setattr(Toy, "method_defaults", lambda self, method: {"lr": 0.1, "deal": ("hidden1",)})
    fields = {"workload": "toy", "method": "ist", "nodes": 2, "steps": 4, "workload_options": {"layers": 2}}
    default = prepare_cell(RunRequest(**fields), lambda *_: None)
    other = prepare_cell(RunRequest(**fields, method_options={"deal": "all"}), lambda *_: None)
    assert default.config.method_options["deal"] == ("hidden1",)
    assert other.config.method_options["deal"] == ("all",)
    for cell in (default, other):
        words = shlex.split(rerun_command(cell))[2:]
        assert prepare_cell(requested(words), lambda *_: None).cell == cell.cell


def typed(**changed):
    head = msgspec.convert(header(), Header, dec_hook=decode_own)
    return msgspec.structs.replace(head, config=msgspec.structs.replace(head.config, **changed))


def test_a_run_of_a_lab_is_made_again_in_one():
    uplink = Uplink(nodes=2, bandwidth=1e8)
    lab = Lab(summary="racks", bandwidth=2.5e9, latency_s=0.005, uplink=uplink)
    line = rerun_command(typed(lab=lab, nodes=3))
    assert line.startswith(
        "istbench lab --nodes=3 --bandwidth=2.5gbit --latency=5000us --racks=2 --uplink=100mbit -- run "
    )
    lab = Lab(summary="hosts", bandwidth=1e9, hosts=LabHosts(nodes=2, bandwidth=1e10))
    line = rerun_command(typed(lab=lab, nodes=4))
    assert line.startswith("istbench lab --nodes=4 --bandwidth=1gbit --host-nodes=2 --inside=10gbit -- run ")


def test_words_of_a_shell_are_quoted_and_no_request_is_no_command():
    hostile = rerun_command(typed(plugins=("a b; rm -rf $HOME",)))
    assert "'--plugin=a b; rm -rf $HOME'" in hostile
    assert rerun_command(typed(method_options={"lr": None})).count("--set") == 0


def on_data(kind, typed_data):
    source = {"kind": kind, "fingerprint": "ab" * 32, "train": 1000, "test": 100}
    head = header(data=kind, data_source=source, typed_data=typed_data)
    return msgspec.convert(head, Header, dec_hook=decode_own)


@pytest.mark.parametrize(
    ("kind", "typed_data", "words"),
    [
        ("speech_commands", "clips of/speech", ["--data=clips of/speech"]),
        ("speech_commands", "", []),  # `istbench data` had made it
        ("synthetic", "", []),
    ],
)
def test_the_command_has_the_data_that_the_user_typed(kind, typed_data, words):
    line = shlex.split(rerun_command(on_data(kind, typed_data)))
    assert [word for word in line if word.startswith("--data")] == words


def test_a_run_records_the_data_that_the_user_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {"workload": "toy", "method": "ddp", "steps": 4}
    assert prepare_cell(RunRequest(**fields), lambda *_: None).typed_data == ""
    (tmp_path / "text.txt").write_text("So shaken as we are, so wan with care. " * 400)
    fields = {"workload": "text", "method": "ddp", "steps": 4, "data": Path("text.txt")}
    found = prepare_cell(RunRequest(**fields), lambda *_: None)
    assert found.typed_data == "text.txt"
    assert "--data=text.txt" in rerun_command(found)
