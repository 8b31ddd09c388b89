"""`istbench retrace` on real runs, whose traces say that they were recorded on a busy machine."""

import dataclasses
import json

import msgspec
import numpy as np
import pytest

from istbench.cli import main
from istbench.cluster.trace import COMPUTE, POST
from istbench.cluster.trace_file import load_trace, save_trace
from istbench.results.load import load_runs

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--methods=ddp,ist", "--workload=toy", "--steps=60", f"--out={out}"])
    assert ended.value.code == 0
    return out


def changed(path, *, seconds=1.0, bytes=1, **meta):
    """Write the trace in `path` with other seconds, bytes and figures of its recording."""
    trace = load_trace(path)
    nodes = tuple(events.copy() for events in trace.nodes)
    for events in nodes:
        events["seconds"] *= np.where(events["code"] == COMPUTE, seconds, 1)
        events["bytes"] *= np.where(events["code"] == POST, bytes, 1)
    save_trace(dataclasses.replace(trace, nodes=nodes, meta=msgspec.structs.replace(trace.meta, **meta)), path)


def test_traces_of_a_busy_machine_are_recorded_again(results, istbench):
    ddp, ist = load_runs(results)[0]
    for run in (ddp, ist):
        changed(run.directory.trace, others_cores=0.0, gflops_range=1.0)
    kept = ist.directory.trace.read_bytes()
    changed(ddp.directory.trace, seconds=1000.0, others_cores=2.0)
    slow = load_trace(ddp.directory.trace)
    status, out, said = istbench("retrace", results, "--json")
    assert status == 0, said
    (found,) = json.loads(out)["recorded"]
    assert found["cell"] == ddp.header.cell
    assert found["doubt_before"].startswith("others used 2.0 of")
    again = load_trace(ddp.directory.trace)
    assert found["step_s"] == pytest.approx(again.computing_s / again.steps)
    assert found["step_s"] < found["step_s_before"] / 10
    assert (again.steps, again.rounds) == (slow.steps, slow.rounds)
    for was, now in zip(slow.nodes, again.nodes, strict=True):
        assert was[["code", "kind", "bytes", "peer"]].tolist() == now[["code", "kind", "bytes", "peer"]].tolist()
    assert ist.directory.trace.read_bytes() == kept
    runs, problems = load_runs(results)
    assert not problems
    assert [run.curve for run in runs] == [ddp.curve, ist.curve]
    assert [run.header for run in runs] == [ddp.header, ist.header]
    assert not list(results.glob("retrace-*"))


def test_traces_of_an_idle_machine_are_recorded_again_if_all_are_asked_for(results, istbench):
    runs = load_runs(results)[0]
    for run in runs:
        changed(run.directory.trace, others_cores=0.0, gflops_range=1.0)
    before = [run.directory.trace.read_bytes() for run in runs]
    status, out, said = istbench("retrace", results)
    assert (status, out) == (0, "0 of 2 traces recorded again; --all records all\n"), said
    assert [run.directory.trace.read_bytes() for run in runs] == before
    status, out, said = istbench("retrace", results, "--all", "--json")
    assert status == 0, said
    assert [found["cell"] for found in json.loads(out)["recorded"]] == [run.header.cell for run in runs]
    assert all(run.directory.trace.read_bytes() != old for run, old in zip(runs, before, strict=True))


def test_rounds_that_send_other_bytes_leave_the_trace_alone(results, istbench):
    _, ist = load_runs(results)[0]
    changed(ist.directory.trace, bytes=2, others_cores=2.0)
    kept = ist.directory.trace.read_bytes()
    status, out, said = istbench("retrace", results, "--json")
    assert status == 1
    assert [line for line in json.loads(out)["failed"] if "keeps its trace: a sample sends" in line] != []
    assert "istbench run --again" in said
    assert ist.directory.trace.read_bytes() == kept


def test_code_comes_from_the_command_line(tmp_path, istbench):
    mine, copy, out = tmp_path / "mine.py", tmp_path / "elsewhere" / "copy.py", tmp_path / "out"
    mine.write_text(
        "from istbench.methods.data_parallel import DataParallel\nclass Mine(DataParallel):\n    name = 'mine'\n"
    )
    words = ["--workload=toy", "--nodes=2", "--steps=40", "--threads=1"]
    status, _, said = istbench("run", "--method=mine", f"--plugin={mine}", *words, f"--out={out}")
    assert status == 0, said
    copy.parent.mkdir()
    copy.write_text(mine.read_text())
    executed = tmp_path / "EXECUTED"
    mine.write_text(f"open({str(executed)!r}, 'w')\n" + mine.read_text())  # the path in the record
    way_out = r"code that is not istbench's own trained it (digest "
    for command in (["retrace", out, "--all"], ["replay", out, "--nodes=4"], ["map", out, "--nodes=2,4"]):
        status, _, said = istbench(*command)
        assert way_out in said
        assert "give your copy of it by --plugin mine.py" in said
        status, _, said = istbench(*command, f"--plugin={mine}")
        assert way_out in said
    assert not executed.exists()
    status, table, said = istbench("replay", out, "--nodes=4", f"--plugin={copy}", "--no-pictures", "--format=csv")
    assert (status, "left out" in said) == (0, False), said
    assert ",4," in table
    status, _, said = istbench("retrace", out, "--all", f"--plugin={copy}", "--workload=toy")
    assert (status, "step computes" in said) == (0, True), said
    status, _, said = istbench("replay", out, f"--plugin={copy}")
    line = "istbench: --plugin has the code that --nodes needs; add --nodes, or leave --plugin out\n"
    assert (status, said) == (2, line)


def test_there_must_be_runs(tmp_path, istbench):
    status, out, said = istbench("retrace", tmp_path)
    assert (status, out) == (2, "")
    assert "no runs in" in said
