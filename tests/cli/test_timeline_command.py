"""`istbench timeline` as a user has it, on a run directory with a trace made by hand."""

import json
import os
from importlib.resources import files

import pytest
from fake_runs import evaluation, header, write_run

from istbench.cluster.trace_builder import TraceBuilder, merge


@pytest.fixture
def run(tmp_path):
    """A run directory whose trace holds three rounds of two nodes."""
    ticks = iter(range(10_000))
    builders = [TraceBuilder(clock=lambda: next(ticks) / 1000) for _ in range(2)]
    for _ in range(3):
        for rank, builder in enumerate(builders):
            builder.compute(0.001)
            ops = [builder.post(kind, 1000, (1 - rank,)) for kind in ("send", "receive")]
            builder.compute(0.0)
            for op in ops:
                builder.wait(op)
            builder.mark("round")
            builder.mark("step")
    trace = merge([builder.to_arrays() for builder in builders], gflops=50.0)
    head = header("ist", options="local_steps=2")
    return write_run(tmp_path / "results", head, [evaluation(0, 0.0, 0.1)], trace=trace).path


@pytest.mark.parametrize(
    ("arguments", "name", "title"),
    [
        ([], "recorded", "as recorded"),
        (["--cluster", "m5.2xlarge"], "m5.2xlarge", "replayed on m5.2xlarge at 2.375 Gbit/s"),
        (
            ["--cluster", "m5.2xlarge", "--bandwidth", "100mbit"],
            "m5.2xlarge-100mbit",
            "replayed on m5.2xlarge at 100 Mbit/s",
        ),
    ],
)
def test_a_round_is_written_as_recorded_and_as_replayed(run, istbench, arguments, name, title):
    status, table, said = istbench("timeline", run, "--round", 2, *arguments)
    assert status == 0
    assert f"speech by ist local_steps=2, 2 nodes, round 2, {title}" in table
    assert "Trained on" in table
    folder = run / "timeline"
    assert {path.name for path in folder.iterdir()} == {f"{name}-round2.{end}" for end in ("json", "png", "svg")}
    document = json.loads((folder / f"{name}-round2.json").read_text())
    assert document["otherData"]["times"] == title
    assert said.splitlines() == [
        f"picture: {folder / name}-round2.png (and .svg)",
        f"trace: {folder / name}-round2.json (for ui.perfetto.dev)",
    ]


def test_a_typical_round_is_shown_where_none_is_named(run, tmp_path, istbench):
    status, table, _ = istbench("timeline", run, "--out", tmp_path / "elsewhere")
    assert status == 0
    assert "round 2, as recorded" in table
    assert {path.stem for path in (tmp_path / "elsewhere").iterdir()} == {"recorded-round2"}
    assert not (run / "timeline").exists()


def test_a_cluster_of_the_users_own_gives_safe_file_names(run, tmp_path, istbench):
    given = files("istbench.cluster") / "profiles" / "office-1gbit.toml"
    own = tmp_path / "My lab $x.toml"
    own.write_text(given.read_text())
    asked = ["--cluster", own, "--bandwidth", " 2.5 gbit ", "--round", 1]
    assert istbench("timeline", run, *asked)[0] == 0
    assert {path.stem for path in (run / "timeline").iterdir()} == {"mylabx-2.5gbit-round1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--round", 4], "round 4 was not recorded; the trace holds rounds 1 to 3: choose with --round"),
        (["--cluster", "m5.2xlrge"], "unknown cluster 'm5.2xlrge'; did you mean 'm5.2xlarge'"),
        (["--cluster", "none.toml"], "no file none.toml; give a cluster profile"),
        (["--cluster", "m5.2xlarge", "--bandwidth", "fast"], "--bandwidth: 'fast' is not a bandwidth"),
        (["--bandwidth", "1gbit"], "--bandwidth needs a cluster: name one with --cluster"),
    ],
)
def test_bad_input_is_refused_in_one_line(run, istbench, arguments, message):
    status, table, said = istbench("timeline", run, *arguments)
    assert (status, table) == (2, "")
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (run / "timeline").exists()


def test_a_run_without_a_sound_trace_is_refused(run, istbench):
    whole = (run / "trace.npz").read_bytes()
    (run / "trace.npz").write_bytes(whole[: len(whole) // 2])
    status, _, said = istbench("timeline", run)
    assert (status, len(said.splitlines())) == (2, 1)
    assert "trace.npz is cut short or not a trace" in said
    (run / "trace.npz").unlink()
    status, _, said = istbench("timeline", run)
    assert (status, len(said.splitlines())) == (2, 1)
    assert f"{run} has no trace.npz" in said
    assert "istbench run --again" in said


def test_what_is_not_a_run_is_named_with_what_to_give(run, tmp_path, istbench):
    status, _, said = istbench("timeline", tmp_path / "nothing")
    assert (status, len(said.splitlines())) == (2, 1)
    assert f"no run in {tmp_path / 'nothing'}" in said
    results = run.parent.parent
    status, _, said = istbench("timeline", results)
    assert (status, len(said.splitlines())) == (2, 1)
    assert f"{results} is a directory of results; give one of the runs in {run.parent}" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(run, tmp_path, istbench):
    (tmp_path / "closed").mkdir(mode=0o500)
    status, _, said = istbench("timeline", run, "--out", tmp_path / "closed" / "in")
    assert status == 2
    assert "choose another --out" in said


def test_a_file_in_the_way_of_the_folder_is_named(run, istbench):
    (run / "timeline").write_text("in the way")
    status, _, said = istbench("timeline", run)
    assert (status, len(said.splitlines())) == (2, 1)
    assert f"cannot write to {run / 'timeline'}" in said
    assert "choose another --out" in said


def test_a_path_controls_no_terminal(run, tmp_path, istbench):
    status, _, said = istbench("timeline", run, "--out", tmp_path / "a\x1b[2Jb")
    assert status == 0
    assert said.count("a?[2Jb") == 2
    assert "\x1b" not in said
