"""`istbench run --sink` and `istbench export` as a user has them."""

import importlib.util

import pytest
from fake_runs import averaging_trace, header, ramp, write_run

TOY = ["run", "--workload", "toy", "--nodes", 2, "--method", "ist", "--steps", 20, "--eval-every", 10]


@pytest.mark.processes
def test_a_run_feeds_its_sinks_as_an_export_does_and_goes_on_without_a_broken_one(tmp_path, istbench):
    out = tmp_path / "results"
    sinks = ["--sink", "mllog", "--sink", "mllog=/dev/null/nowhere"]
    if importlib.util.find_spec("tensorboard"):
        sinks += ["--sink", "tensorboard"]
    status, _, said = istbench(*TOY, "--out", out, *sinks)
    assert status == 0
    assert said.count("sink mllog=/dev/null/nowhere: NotADirectoryError") == 1
    (log,) = (out / "mllog").iterdir()
    (run,) = (out / "runs").iterdir()
    assert log.name == f"{run.name}.log"
    status, text, _ = istbench("export", "--format", "mllog", "--out", tmp_path / "again", run)
    assert (status, text) == (0, f"{run.name}: {tmp_path / 'again'}\n")
    assert (tmp_path / "again" / log.name).read_text() == log.read_text()
    if (out / "tensorboard").exists():
        status, _, _ = istbench("export", "--format", "tensorboard", "--out", tmp_path / "board", out)
        assert status == 0
        assert curve(tmp_path / "board" / run.name) == curve(out / "tensorboard" / run.name)
    # A sink is no part of a cell.
    status, _, said = istbench(*TOY, "--out", out)
    assert (status, "is done already" in said) == (0, True)


def curve(folder):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: [(point.step, point.value, point.wall_time) for point in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_export_takes_a_results_directory_and_leaves_out_unfinished_and_untraced_runs(tmp_path, istbench):
    results = tmp_path / "results"
    for method in ("ddp", "ist"):
        write_run(results, header(method), ramp(9.0), trace=averaging_trace())
    untraced = write_run(results, header("a_first"), ramp(9.0))
    unfinished = write_run(results, header("local_sgd", status="interrupted"), [])
    status, text, said = istbench("export", "--format", "chakra", results)
    assert (status, len(text.splitlines())) == (0, 2)
    assert said.startswith(f"left out: {untraced.path.name}: ")
    assert len(said.splitlines()) == 1
    names = sorted(path.name for path in (results / "chakra").iterdir())
    assert names == [f"speech-{method}-n2-s0.{rank}.et" for method in ("ddp", "ist") for rank in (0, 1)]
    status, _, said = istbench("export", "--format", "chakra", unfinished.path)
    assert (status, "is interrupted, not done" in said) == (2, True)


@pytest.mark.parametrize("name", ["mllog", "jsonl"])
def test_two_runs_of_one_cell_do_not_replace_one_another(tmp_path, istbench, name):
    for folder in ("before", "after"):
        write_run(tmp_path / folder, header("ddp"), ramp(9.0))
    both = [tmp_path / "before", tmp_path / "after"]
    out = tmp_path / ("rows.jsonl" if name == "jsonl" else "logs")
    status, _, said = istbench("export", "--format", name, *both, "--out", out)
    assert (status, "are the same cell" in said, out.exists()) == (2, True, False)
    assert istbench("export", "--format", name, both[0], "--out", out)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--format", "chackra"],
            "unknown format 'chackra'; did you mean 'chakra'? Known: chakra, jsonl, mlflow",
        ),
        (
            ["--format", "mllog", "--out", "/dev/null/nowhere"],
            "cannot export speech-ddp-n2-s0 to /dev/null/nowhere",
        ),
        (["--format", "chakra"], "trace.npz"),
    ],
)
def test_export_refuses_bad_input_in_one_line(results, istbench, arguments, message):
    write_run(results, header(), ramp(9.0))
    status, _, said = istbench("export", results, *arguments)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said


def test_a_wrong_sink_costs_no_training(tmp_path, istbench):
    status, _, said = istbench(*TOY, "--out", tmp_path / "out", "--sink", "tensorbord")
    assert (status, len(said.splitlines())) == (2, 1)
    assert "unknown sink 'tensorbord'; did you mean 'tensorboard'" in said
    assert not (tmp_path / "out").exists()
