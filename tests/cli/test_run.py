"""`istbench run` as a user has it: what it says, its exit statuses, and what it leaves behind."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from said import one_line

from istbench.base.options.interval import Interval
from istbench.results.load import load_run
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

TOY = ["run", "--workload", "toy", "--nodes", 2]


@pytest.mark.usefixtures("warm_commands")
def test_json_is_one_object_with_what_was_run_and_what_came_of_it(tmp_path, istbench):
    run = [*TOY, "--method", "ist", "--json", "--steps", 40, "--out"]
    command = [sys.executable, "-m", "istbench", *map(str, run), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for key in (
        "cell", "run_dir", "status", "method", "workload", "nodes", "seed", "steps", "samples", "data", "clock",
        "train_s", "wall_s", "train_loss", "final", "targets", "bytes_sent_per_node", "bytes_received_per_node",
        "peak_memory_bytes_per_node", "weights_sha256",
    ):  # fmt: skip
        assert key in result
    assert (result["status"], result["data"], result["clock"]) == ("done", "synthetic", "train_s")
    assert (result["steps"], result["samples"]) == (40, 40 * 16 * 2)
    assert [target["level"] for target in result["targets"]] == [0.5, 0.8]
    assert 0 < result["train_s"] < result["wall_s"]
    assert len(result["weights_sha256"]) == 64
    # The same seed again, elsewhere, is the same run; and here it is not run a second time.
    _, again, _ = istbench(*run, tmp_path / "b")
    assert json.loads(again)["weights_sha256"] == result["weights_sha256"]
    _, shown, said = istbench(*run, tmp_path)
    assert json.loads(shown) == result
    assert "is done already" in said


def test_final_weights_are_saved_as_their_digest_has_them(tmp_path, istbench):
    sizes = [
        f"--workload-set={size}" for size in ("hidden=9", "points=400", "features=50", "labels=70", "block=16")
    ]
    run = ["run", "--workload", "amazon670k", *sizes, "--method", "ist", "--nodes", 2, "--batch-size", 16]
    run += ["--steps", 6, "--json", "--out", tmp_path / "results"]
    status, out, said = istbench(*run, "--save", tmp_path / "weights")
    assert status == 0, said
    result = json.loads(out)
    assert {"precision@1", "precision@3", "precision@5"} <= result["final"].keys()
    assert result["saved"] == str(tmp_path / "weights")
    tensors = load_file(tmp_path / "weights" / "model.safetensors")
    content = b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))
    assert hashlib.sha256(content).hexdigest() == result["weights_sha256"]
    for folder, wanted in (("weights", 0), ("elsewhere", 2)):  # the same again: its weights are there, or lost
        status, out, said = istbench(*run, "--save", tmp_path / folder)
        assert status == wanted
        assert ("is done already, and its weights are not in" in said) == bool(wanted)
        assert wanted or json.loads(out) == result


def test_a_run_in_bfloat16_learns_and_says_so(tmp_path, istbench):
    run = [*TOY, "--method", "ist", "--steps", 80, "--out", tmp_path, "--amp", "bf16", "--channels-last"]
    run += ["--workload", "tiny_images", "--plugin", Path(__file__).parents[1] / "tiny_images.py", "--json"]
    _, out, _ = istbench(*run)
    result = json.loads(out)
    assert (result["amp"], result["channels_last"], result["compile"]) == ("bf16", True, False)
    assert result["final"]["accuracy"] > 0.8
    header = RunDirectory(Path(result["run_dir"])).header()
    assert header.method_label == "ist amp=bf16 channels_last=True"


def test_a_compiled_run_is_the_run(tmp_path, istbench):
    if not shutil.which("g++"):
        pytest.skip("there is no C++ compiler here")
    run = ["run", "--workload", "toy", "--workload-set", "layers=1", "--method", "ist", "--steps", 30]
    run += ["--set", "momentum=0.9", "--json"]
    plain, compiled = (json.loads(istbench(*run, *more, "--out", tmp_path)[1]) for more in ([], ["--compile"]))
    assert compiled["cell"] != plain["cell"]
    assert compiled["final"]["loss"] == pytest.approx(plain["final"]["loss"], rel=1e-4)


def test_one_seed_is_one_model_whatever_the_method_and_the_number_of_nodes(tmp_path, istbench):
    """With nothing learned, all end with the initial model, its BatchNorm statistics included, bit for bit."""
    hashes = set()
    for nodes, method, options in (
        (1, "ist", ["local_steps=0"]),
        (3, "ist", ["local_steps=0"]),
        (2, "ddp", ["lr=0"]),
    ):
        chosen = [flag for option in options for flag in ("--set", option)]
        _, out, _ = istbench(
            "run", "--workload", "toy", "--workload-set", "batch_norm=true", "--method", method, "--nodes", nodes,
            "--steps", 5, *chosen, "--json", "--out", tmp_path,
        )  # fmt: skip
        hashes.add(json.loads(out)["weights_sha256"])
    assert len(hashes) == 1


def test_a_target_that_is_not_reached_has_a_status_of_its_own(tmp_path, istbench):
    status, _, said = istbench(*TOY, "--method", "ddp", "--out", tmp_path, "--steps", 5, "--target", 0.99)
    assert status == 3
    assert "target 0.99 not reached" in one_line(said)
    status, out, _ = istbench(*TOY, "--method", "ddp", "--out", tmp_path, "--target", 0.6, "--json")
    assert status == 0
    result = json.loads(out)
    assert result["final"]["accuracy"] >= 0.6
    assert result["steps"] < 160


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "isst", "--workload", "toy"], "unknown method 'isst'; did you mean 'ist'"),
        (["--method", "ist", "--workload", "toi"], "unknown workload 'toi'; did you mean 'toy'"),
        (["--method", "ist", "--workload", "toy", "--set", "local_step=4"], "did you mean 'local_steps'"),
        (
            ["--method", "ist", "--workload", "toy", "--set", "local_steps=-4"],
            "option local_steps must be a whole number of at least 0",
        ),
        (["--method", "ist", "--workload", "toy", "--set", "lr"], "--set 'lr' is not of the form name=value"),
        (["--method", "ist", "--workload", "toy", "--workload-set", "hiden=4"], "did you mean 'hidden'"),
        (["--method", "ist", "--workload", "toy", "--nodes", "17"], "has 16 units for 17 nodes"),
        (["--method", "ist", "--workload", "toy", "--nodes", "0"], "--nodes must be a whole number of at least 1"),
        (["--method", "ist", "--workload", "toy", "--steps", "-1"], "--steps must be a whole number of at least 1"),
        (
            ["--method", "ist", "--workload", "toy", "--batch-size", "0"],
            "--batch-size must be a whole number of at least 1",
        ),
        (["--method", "ist", "--workload", "toy", "--batch-size", "600"], "larger than a node's data"),
        (["--method", "ist", "--workload", "toy", "--data", "/nowhere"], "leave out --data"),
        (["--method", "ist", "--workload", "toy", "--plugin", "none.py"], "no file none.py"),
        (["--method", "ist", "--workload", "toy", "--device", "tpu"], "--device must be one of auto, cpu, cuda"),
        (["--method", "ist", "--workload", "toy", "--amp", "fp8"], "--amp must be one of bf16, fp16, not 'fp8'"),
        (["--method", "ist", "--workload", "toy", "--channels-last"], "toy has no filters of images; leave it out"),
        (["--method", "p3", "--workload", "toy", "--compile"], "p3 waits for parameters module by module"),
        (["--method", "ist"], "Missing option '--workload'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, istbench, arguments, message):
    status, _, said = istbench("run", *arguments, "--out", tmp_path / "out")
    assert status == 2
    assert message in one_line(said)
    assert one_line(said) == said.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_a_results_directory_that_cannot_be_written(tmp_path, istbench):
    (tmp_path / "runs").write_text("a file where a folder should be")
    status, _, said = istbench(*TOY, "--method", "ist", "--out", tmp_path)
    assert status == 2
    assert str(tmp_path) in one_line(said)
    assert "cannot write" in said


def test_a_run_directory_of_another_schema(tmp_path, istbench):
    run = [*TOY, "--method", "ddp", "--steps", 2, "--out", tmp_path, "--json"]
    _, out, _ = istbench(*run)
    header = Path(json.loads(out)["run_dir"]) / "run.json"
    header.write_text(header.read_text().replace('"schema": 2', '"schema": 9'))
    status, _, said = istbench(*run)
    assert status == 2
    assert "schema 9" in one_line(said)


def test_evaluations_can_be_told_in_train_seconds(tmp_path, istbench):
    run = [*TOY, "--method", "ddp", "--eval-every", "0.2s", "--max-seconds", 1, "--epochs", 10_000, "--json"]
    status, out, said = istbench(*run, "--out", tmp_path)
    assert status == 0, said
    run = load_run(RunDirectory(Path(json.loads(out)["run_dir"])))
    assert run.header.config.eval_every == Interval(seconds=0.2)
    # Ten steps to learn how long one takes, then some five times 0.2 s, with room for a busy machine.
    assert 3 <= len(run.curve.evaluations) <= 30
    assert run.curve.seconds[-1] >= 1


def test_help_and_list_answer_without_torch():
    commands = [["--help"], ["run", "--help"], ["list", "methods"], ["list", "workloads"]]
    code = (
        "import sys; from istbench.cli import main\n"
        f"for arguments in {commands}:\n"
        "  try: main(arguments)\n"
        "  except SystemExit as end: print('ended', end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    *shown, rest = done.stdout.split("ended 0 False\n")
    assert len(shown) == len(commands), done.stderr
    assert all(shown)
    assert not rest


def test_a_finished_run_is_shown_with_the_data_of_this_command(tmp_path, istbench):
    for name in ("mine", "copied"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text("4 4 5\n" + "1,2 0:1 3:0.5\n" * 4)
        (tmp_path / name / "test.txt").write_text("2 4 5\n" + "1 0:1\n" * 2)
    cell = ["run", "--workload", "amazon670k", "--workload-set", "hidden=4", "--method", "ddp", "--steps", 1,
            "--batch-size", 2, "--out", tmp_path / "out"]  # fmt: skip
    status, shown, said = istbench(*cell, "--data", tmp_path / "mine")
    assert (status, "Data: mine, 6 points" in shown) == (0, True), said
    status, shown, said = istbench(*cell, "--data", tmp_path / "copied")
    assert (status, "is done already" in said) == (0, True)
    assert "Data: copied, 6 points" in shown
    status, shown, _ = istbench(*cell, "--data", tmp_path / "copied", "--json")
    assert (status, json.loads(shown)["data_seen"]) == (0, "copied, 6 points")
    compare = ["compare", "--methods", "ddp", "--nodes", 1, *cell[1:5], *cell[7:]]
    status, shown, said = istbench(*compare, "--data", tmp_path / "copied")
    assert (status, "done before" in said, "Data: copied, 6 points" in shown) == (0, True, True), said
