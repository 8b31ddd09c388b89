"""`istbench reproduce` as a user has it, on a paper of toy cells."""

import json
import os
import signal
import threading
import time

import pytest

from istbench.base.options.suite import Suite
from istbench.results.events import Resume
from istbench.results.store import RunDirectory
from istbench.studies.reproduce import curves, papers
from istbench.studies.reproduce import figures as published_figures
from istbench.studies.reproduce.clocks import MeasuredClock
from istbench.studies.reproduce.paper import Cells, Difference, Experiment, Extent, Paper

FIGURES = (
    "paper,workload,options,method,method_options,nodes,metric,level,seconds,value,note\n"
    "Toys,toy,,ddp,,2,accuracy,0.5,100,,read off a curve\n"
    "Toys,toy,,ist,local_steps=2,2,accuracy,1.5,100,,\n"
)
SPEED_UPS = (
    "paper,workload,options,method,method_options,nodes,over,over_options,metric,level,gbit_s,speedup,note\n"
)


@pytest.fixture
def toys(request, monkeypatch, tmp_path):
    """The paper `ist` with two toy cells of two seeds, the second of 40 steps or more; its table is `points`."""
    steps = {"ddp": 40, "ist": getattr(request, "param", 40)}
    (tmp_path / "figures.csv").write_text(FIGURES)
    (tmp_path / "speedups.csv").write_text(SPEED_UPS)
    monkeypatch.setattr(published_figures, "PUBLISHED", tmp_path)
    suites = [
        Suite(
            workload="toy", methods=((name, own),), nodes=(2,), seeds=(0, 1),
            run={"steps": steps[name], "eval_every": max(10, steps[name] // 12)},
        )
        for name, own in (("ddp", {}), ("ist", {"local_steps": 2}))
    ]  # fmt: skip
    measure = curves.Curves(sources=("Toys",), workload="toy", clock=MeasuredClock(), title="Points")
    extent = Extent(
        cells=tuple(Cells(suite=suite, hours=0.005) for suite in suites),
        measure=measure,
        differs=(Difference(aspect="width", text="narrow."),),
    )
    experiment = Experiment(name="points", title="Points", at={"laptop": extent, "paper": extent})
    monkeypatch.setitem(papers.PAPERS, "ist", Paper(name="ist", title="Toys", experiments=(experiment,)))
    return tmp_path / "out"


def figures(text):
    (table,) = json.loads(text)["tables"]
    return {row["method"]: row for row in table["rows"]}


@pytest.mark.processes
def test_a_paper_is_trained_once_and_ends_in_ours_beside_published(istbench, toys):
    asked = ["reproduce", "ist", "--out", toys, "--threads", 1]
    status, listed, _ = istbench(*asked, "--list")
    assert status == 0
    assert "4 cells to run, about 0.0200 hours" in listed
    status, printed, _ = istbench(*asked, "--report", "--json")
    assert status == 0
    assert {row["ours"] for row in figures(printed).values()} == {"not trained"}
    status, printed, said = istbench(*asked, "--seeds", 1, "--json")
    assert status == 0, said
    assert "2 of 2 cells to run" in said
    assert "about 0.0100 hours on two idle cores" in said
    ended = [line for line in said.splitlines() if ": done" in line]
    assert ["hours left" in line for line in ended] == [True, False]
    # The tables of the whole paper, of which a part is trained.
    status, printed, _ = istbench(*asked, "--report", "--json")
    rows = figures(printed)
    assert rows["ddp"]["seeds"] == {"reached": 1, "trained": 1, "planned": 2}
    assert rows["ddp"]["ours_over_published"] == pytest.approx(rows["ddp"]["ours"]["median"] / 100)
    assert rows["ist local_steps=2"]["seeds"] == {"reached": 0, "trained": 1, "planned": 2}
    assert rows["ist local_steps=2"]["ours_over_published"] is None
    status, printed, said = istbench(*asked, "--seeds", 1)
    assert status == 0
    assert said.count(": done before") == 2
    assert "cells to run" not in said
    assert "not reached, best" in printed
    assert "Differs, width: narrow." in printed
    assert {path.name for path in (toys / "report").iterdir()} == {
        "ist-laptop.md", "ist-laptop.csv", "toy.png", "toy.svg",
    }  # fmt: skip
    assert istbench(*asked, "--report", "--only", "points")[0] == 0
    (damaged, *_) = (toys / "runs").glob("*/events.jsonl")
    damaged.write_text("{")
    status, printed, said = istbench(*asked, "--report", "--only", "points")
    assert status == 1
    assert "cells are not trained, or unreadable" in printed
    assert damaged.parent.name in said
    assert (toys / "report" / "ist-laptop-points.md").exists()


@pytest.mark.processes
@pytest.mark.parametrize("toys", [1200], indirect=True)
def test_after_ctrl_c_the_ended_cells_have_their_table_and_the_same_command_goes_on(istbench, toys):
    asked = ["reproduce", "ist", "--out", toys, "--threads", 1, "--seeds", 1]
    begun = {}

    def interrupt_the_second_cell():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for events in toys.glob("runs/toy-ist-*/events.jsonl"):
                if events.read_text().count("evaluation") >= 2:  # at step 0 no worker listens yet
                    begun["second"] = RunDirectory(events.parent)
                    os.kill(os.getpid(), signal.SIGINT)
                    return
            time.sleep(0.01)

    watch = threading.Thread(target=interrupt_the_second_cell)
    watch.start()
    status, _, said = istbench(*asked)
    watch.join()
    assert status == 130, said
    assert "1 of 2 cells ended; --report prints their tables" in said
    assert "interrupted; run the same command again" in said
    status, printed, _ = istbench(*asked, "--report", "--json")
    assert status == 0
    assert figures(printed)["ddp"]["seeds"] == {"reached": 1, "trained": 1, "planned": 1}
    assert figures(printed)["ist local_steps=2"]["ours"] == "not trained"
    status, printed, said = istbench(*asked, "--json")
    assert status == 0, said
    assert said.count(": done before") == 1
    assert figures(printed)["ist local_steps=2"]["seeds"] == {"reached": 0, "trained": 1, "planned": 1}
    (resumed,) = [event for event in begun["second"].events() if isinstance(event, Resume)]
    assert 100 <= resumed.step < 1200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "pionts"], "unknown table 'pionts' of ist; did you mean 'points'"),
        (["--nodes", "2,4"], "--nodes 2,4: a reproduction has one number of nodes; name one"),
        (["--data", "speech=x"], "--data 'speech=x': name its workload, one of toy: --data toy=DIR"),
        (["--data", "toy=a", "--data", "toy=b"], "--data names toy twice; leave one out"),
        (["--only", ","], "--only is empty"),
        (["--again"], "--again runs cells, and --list runs none"),
        (["--restarts", "2"], "--restarts is for cells that run, and --list runs none; leave it out"),
    ],
)
def test_wrong_use_is_refused_in_one_line(istbench, toys, arguments, message):
    status, _, said = istbench("reproduce", "ist", "--out", toys, "--list", *arguments)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said


def test_papers_are_named(istbench):
    status, _, said = istbench("reproduce", "lora")
    assert status == 2
    assert "'ist', 'p3', 'dslide'" in said


def test_tables_are_printed_also_where_their_files_cannot_be_written(istbench, toys):
    toys.mkdir()
    (toys / "report").write_text("in the way")
    status, printed, said = istbench("reproduce", "ist", "--out", toys, "--report")
    assert status == 2
    assert "not trained" in printed
    assert said.splitlines()[-1].startswith("istbench: cannot write ")


def test_results_that_are_unreadable_end_in_one_line(istbench, toys):
    toys.mkdir()
    (toys / "runs").write_text("in the way")
    status, _, said = istbench("reproduce", "ist", "--out", toys, "--report")
    assert (status, len(said.splitlines())) == (2, 1)
    assert said.startswith("istbench: cannot read ")
