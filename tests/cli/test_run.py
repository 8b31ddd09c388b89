"""`istbench run` as a user has it: real processes, its exit statuses, and what it leaves behind."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from istbench.cli import main
from istbench.config.interval import Interval
from istbench.results.events import Resume
from istbench.results.load import load_run
from istbench.results.store import RunDirectory

ISTBENCH = [sys.executable, "-m", "istbench"]
TOY = ["run", "--workload", "toy", "--nodes", "2"]


def istbench(*arguments, timeout=120, **options):
    command = [*ISTBENCH, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def one_line(done, status=2):
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("istbench: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_json_is_one_object_with_what_was_run_and_what_came_of_it(tmp_path):
    done = istbench(*TOY, "--method", "ist", "--out", tmp_path, "--json", "--steps", 40)
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
    again = json.loads(istbench(*TOY, "--method", "ist", "--out", tmp_path / "b", "--json", "--steps", 40).stdout)
    assert again["weights_sha256"] == result["weights_sha256"]
    shown = istbench(*TOY, "--method", "ist", "--out", tmp_path, "--json", "--steps", 40)
    assert json.loads(shown.stdout) == result
    assert "is done already" in shown.stderr


def test_final_weights_are_saved_as_their_digest_has_them(tmp_path, capsys):
    sizes = [
        f"--workload-set={size}" for size in ("hidden=9", "points=400", "features=50", "labels=70", "block=16")
    ]
    run = ["run", "--workload", "amazon670k", *sizes, "--method", "ist", "--nodes", 2, "--batch-size", 16]
    run += ["--steps", 6, "--json", "--out", tmp_path / "results"]
    done = istbench(*run, "--save", tmp_path / "weights")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {"precision@1", "precision@3", "precision@5"} <= result["final"].keys()
    assert result["saved"] == str(tmp_path / "weights")
    tensors = load_file(tmp_path / "weights" / "model.safetensors")
    content = b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))
    assert hashlib.sha256(content).hexdigest() == result["weights_sha256"]
    for folder, status in (("weights", 0), ("elsewhere", 2)):  # the same again: its weights are there, or lost
        with pytest.raises(SystemExit) as end:
            main([*map(str, run), "--save", str(tmp_path / folder)])
        assert end.value.code == status
        out, said = capsys.readouterr()
        assert ("is done already, and its weights are not in" in said) == bool(status)
        assert status or json.loads(out) == result


def test_a_run_in_bfloat16_learns_and_says_so(tmp_path):
    run = [*TOY, "--method", "ist", "--steps", 80, "--out", tmp_path, "--amp", "bf16", "--channels-last"]
    run += ["--workload", "tiny_images", "--plugin", Path(__file__).parents[1] / "tiny_images.py", "--json"]
    result = json.loads(istbench(*run).stdout)
    assert (result["amp"], result["channels_last"], result["compile"]) == ("bf16", True, False)
    assert result["final"]["accuracy"] > 0.8
    header = RunDirectory(Path(result["run_dir"])).header()
    assert header.method_label == "ist amp=bf16 channels_last=True"


def test_a_compiled_run_is_the_run(tmp_path):
    if not shutil.which("g++"):
        pytest.skip("there is no C++ compiler here")
    run = ["run", "--workload", "toy", "--method", "ist", "--steps", 30, "--set", "momentum=0.9", "--json"]
    plain, compiled = (json.loads(istbench(*run, *more, "--out", tmp_path).stdout) for more in ([], ["--compile"]))
    assert compiled["cell"] != plain["cell"]
    assert compiled["final"]["loss"] == pytest.approx(plain["final"]["loss"], rel=1e-4)


def test_one_seed_is_one_model_whatever_the_method_and_the_number_of_nodes(tmp_path):
    """With nothing learned, all end with the initial model, its BatchNorm statistics included, bit for bit."""
    hashes = set()
    for nodes, method, options in (
        (1, "ist", ["local_steps=0"]),
        (3, "ist", ["local_steps=0"]),
        (2, "ddp", ["lr=0"]),
    ):
        chosen = [flag for option in options for flag in ("--set", option)]
        done = istbench(
            "run", "--workload", "toy", "--workload-set", "batch_norm=true", "--method", method, "--nodes", nodes,
            "--steps", 5, *chosen, "--json", "--out", tmp_path,
        )  # fmt: skip
        hashes.add(json.loads(done.stdout)["weights_sha256"])
    assert len(hashes) == 1


def test_a_target_that_is_not_reached_has_a_status_of_its_own(tmp_path):
    done = istbench(*TOY, "--method", "ddp", "--out", tmp_path, "--steps", 5, "--target", 0.99)
    assert "target 0.99 not reached" in one_line(done, status=3)
    done = istbench(*TOY, "--method", "ddp", "--out", tmp_path, "--target", 0.6, "--json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
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
        (["--method", "ist", "--workload", "toy", "--plugin", "none.py"], "no plug-in file none.py"),
        (["--method", "ist", "--workload", "toy", "--device", "tpu"], "--device must be one of auto, cpu, cuda"),
        (["--method", "ist", "--workload", "toy", "--amp", "fp8"], "--amp must be one of bf16, fp16, not 'fp8'"),
        (["--method", "ist", "--workload", "toy", "--channels-last"], "toy has no filters of images; leave it out"),
        (["--method", "p3", "--workload", "toy", "--compile"], "p3 waits for parameters module by module"),
        (["--method", "ist"], "Missing option '--workload'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert [line for line in said if line.startswith("istbench: ")] == said[-1:]
    assert message in said[-1]
    assert not (tmp_path / "out").exists()


def test_a_results_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "runs").write_text("a file where a folder should be")
    line = one_line(istbench(*TOY, "--method", "ist", "--out", tmp_path))
    assert str(tmp_path) in line
    assert "cannot write" in line


def test_a_run_directory_of_another_schema(tmp_path):
    first = istbench(*TOY, "--method", "ddp", "--steps", 2, "--out", tmp_path, "--json")
    header = Path(json.loads(first.stdout)["run_dir"]) / "run.json"
    header.write_text(header.read_text().replace('"schema": 1', '"schema": 9'))
    line = one_line(istbench(*TOY, "--method", "ddp", "--steps", 2, "--out", tmp_path))
    assert "schema 9" in line


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: needs root")
    try:
        (disk / "filler").write_bytes(b"x" * 4096 * 8)
        run = [*TOY, "--method", "ist", "--epochs", 200, "--out", disk]
        line = one_line(istbench(*run))
        assert "no space left" in line
        (events,) = disk.glob("runs/*/events.jsonl")
        before = [text for text in events.read_text().splitlines() if text.endswith("}")]
        assert any(json.loads(text)["event"] == "evaluation" for text in before)
        (disk / "filler").unlink()
        shown = istbench(*run, "--json", timeout=200)
        assert events.read_text().startswith("\n".join(before[:2]))
        assert shown.returncode in (0, 2)
    finally:
        subprocess.run(["umount", disk], check=True)


def start_long_run(tmp_path, *more):
    """A run that would last minutes, once it has evaluated a few times; in a process group of its own."""
    command = [*ISTBENCH, *TOY, "--method", "ist", "--epochs", "100000", "--out", str(tmp_path), *more]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in tmp_path.glob("runs/*/events.jsonl"):
            if path.read_text().count("evaluation") > 3:
                return process, path.parent
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.kill()
    raise AssertionError("the run did not start within a minute")


def stat(pid):
    """Fields of /proc/PID/stat after the command's name, from the state on; see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def members(group):
    """Living processes of a process group."""
    alive = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of_group, *_ = stat(path.name)
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            alive.append(int(path.name))
    return alive


def group_is_gone(group, within=15):
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not members(group):
            return True
        time.sleep(0.2)
    return False


def test_ctrl_c_ends_every_process_and_leaves_a_run_that_resumes(tmp_path):
    process, run = start_long_run(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; run the same command again" in said
    assert "Traceback" not in said
    assert group_is_gone(process.pid)
    header = json.loads((run / "run.json").read_text())
    assert header["status"] == "interrupted"


def test_a_cell_is_run_by_one_istbench_at_a_time(tmp_path):
    process, _ = start_long_run(tmp_path)
    line = one_line(istbench(*TOY, "--method", "ist", "--epochs", "100000", "--out", tmp_path))
    assert "another istbench is running toy-ist-n2-s0-" in line
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)


def kill_at_a_checkpoint(run, out):
    """Start `run` with its results in `out`, and kill it once there is something to resume from."""
    command = [*ISTBENCH, *map(str, run), "--out", str(out)]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(out.glob("runs/*/checkpoint/latest.json")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    time.sleep(2)  # its workers end by themselves


def test_a_killed_run_resumes_to_the_weights_and_curve_of_one_that_never_stopped(tmp_path):
    run = [*TOY, "--method", "ist", "--epochs", 60, "--set", "momentum=0.5", "--checkpoint-every", 0, "--json",
           "--set", "schedule=cosine", "--set", "warmup=0.1"]  # fmt: skip
    whole = istbench(*run, "--out", tmp_path / "whole")
    kill_at_a_checkpoint(run, tmp_path / "killed")
    resumed = istbench(*run, "--out", tmp_path / "killed")
    one, other = json.loads(whole.stdout), json.loads(resumed.stdout)
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["bytes_sent_per_node"] == other["bytes_sent_per_node"]
    curves = [load_run(RunDirectory(Path(result["run_dir"]))).curve for result in (one, other)]
    assert curves[0].values == curves[1].values
    assert len(curves[0].evaluations) == 61
    events = RunDirectory(Path(other["run_dir"])).events()
    assert [event.step > 0 for event in events if isinstance(event, Resume)] == [True]
    assert not (Path(other["run_dir"]) / "checkpoint").exists()


def test_a_broken_checkpoint_is_one_line_that_says_what_to_delete(tmp_path):
    run = [*TOY, "--method", "ist", "--epochs", 60, "--checkpoint-every", 0]
    kill_at_a_checkpoint(run, tmp_path)
    (latest,) = tmp_path.glob("runs/*/checkpoint/latest.json")
    for path in (latest.parent / str(json.loads(latest.read_text())["step"]) / "rank-1.json", latest):
        path.write_text('{"method": {"steps": -1}}')
        assert f"delete {latest.parent} to start the cell anew" in one_line(istbench(*run, "--out", tmp_path))


def test_evaluations_can_be_told_in_train_seconds(tmp_path):
    done = istbench(*TOY, "--method", "ddp", "--eval-every", "0.2s", "--max-seconds", 1, "--epochs", 10_000,
                    "--out", tmp_path, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = load_run(RunDirectory(Path(json.loads(done.stdout)["run_dir"])))
    assert run.header.config.eval_every == Interval(seconds=0.2)
    # Ten steps to learn how long one takes, then some five times 0.2 s, with room for a busy machine.
    assert 3 <= len(run.curve.evaluations) <= 30
    assert run.curve.seconds[-1] >= 1


def test_workers_end_when_the_launcher_is_killed(tmp_path):
    process, run = start_long_run(tmp_path)
    process.kill()
    process.wait()
    assert group_is_gone(process.pid)
    header = json.loads((run / "run.json").read_text())
    assert header["status"] == "running"


def test_a_killed_worker_is_named_and_the_run_marked_failed(tmp_path):
    process, run = start_long_run(tmp_path)
    worker = max(members(process.pid), key=lambda pid: int(stat(pid)[19]))  # workers start last
    os.kill(worker, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert "was killed by SIGKILL" in said
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert group_is_gone(process.pid)


def test_help_and_list_answer_without_torch():
    for arguments in (["--help"], ["run", "--help"], ["list", "methods"], ["list", "workloads"]):
        code = (
            "import sys; from istbench.cli import main\n"
            f"try: main({arguments!r})\n"
            "except SystemExit as end: sys.exit(99 if 'torch' in sys.modules else end.code)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
