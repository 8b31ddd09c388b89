"""Runs that start again by themselves after a loss: real nodes that die."""

import json
import os
import re
from pathlib import Path

import pytest
from said import one_line
from torchruns import run_on_one

from istbench.results.events import Ready, Resume
from istbench.results.store import RunDirectory

# A node of these dies at its hundredth step, as many times as `how.json` says, which also names the node.
DYING = """
import json, os, signal
from pathlib import Path
from istbench.methods.local_sgd import LocalSGD
class Dying(LocalSGD):
    name = "dying"
    taken = 0
    def step(self, batch):
        self.taken += 1
        here = Path(__file__).parent
        how, died = json.loads((here / "how.json").read_text()), len(list(here.glob("*.died")))
        if self.taken == 100 and os.environ["RANK"] == how["victim"] and died < how["deaths"]:
            (here / f"{died}.died").touch()
            if how["way"] == "raise":
                raise ValueError("no good")
            os.kill(os.getppid() if how["way"] == "parent" else os.getpid(), signal.SIGKILL)
        return super().step(batch)
"""
TOY = ["--workload", "toy", "--checkpoint-every", 0]


@pytest.fixture
def dying(tmp_path):
    """Words of a method whose node dies so many times."""
    plugin = tmp_path / "dying.py"
    plugin.write_text(DYING)

    def words(deaths, victim="1", way="kill"):
        for path in tmp_path.glob("*.died"):
            path.unlink()
        (tmp_path / "how.json").write_text(json.dumps({"deaths": deaths, "victim": victim, "way": way}))
        return ["--plugin", plugin, *TOY]

    return words


@pytest.mark.processes
@pytest.mark.parametrize("how", [{"victim": "1"}, {"victim": "0"}, {"way": "parent"}])
def test_a_run_that_loses_a_worker_ends_in_the_weights_of_one_that_does_not(tmp_path, istbench, dying, how):
    run = ["run", "--method", "dying", "--nodes", 2, "--json"]
    status, out, said = istbench(*run, *dying(1, **how), "--restarts", 1, "--out", tmp_path / "lost")
    assert status == 0, said
    (restart,) = json.loads(out)["restarts"]
    who = "the fork server" if "way" in how else f"worker {how['victim']}"
    assert who in restart["cause"]
    assert "was killed by SIGKILL" in restart["cause"]
    assert said.count("; all nodes start again from step ") == 1
    assert re.search(r"restarted once after a loss, [0-9.]+ s outside its clocks", said)
    (events,) = (RunDirectory(path).events() for path in tmp_path.glob("lost/runs/*"))
    (resume,) = (event for event in events if isinstance(event, Resume))
    (ready,) = (event for event in events if isinstance(event, Ready))
    assert resume.step == ready.step == restart["step"] > 0
    assert resume.step + restart["redone_steps"] >= 99
    _, undisturbed, _ = istbench(*run, *dying(0), "--out", tmp_path / "whole")
    assert json.loads(undisturbed)["restarts"] == []
    for same in ("weights_sha256", "cell", "steps", "bytes_sent_per_node", "final"):
        assert json.loads(undisturbed)[same] == json.loads(out)[same]


@pytest.mark.processes
def test_a_run_does_not_start_again_after_an_error_of_its_own(tmp_path, istbench, dying):
    words = dying(9, way="raise")
    status, _, said = istbench("run", "--method", "dying", "--nodes", 2, *words, "--restarts", 5, "--out", tmp_path)
    assert status == 1
    assert "ValueError: no good" in said
    assert [path.name for path in tmp_path.glob("*.died")] == ["0.died"]


@pytest.mark.processes
@pytest.mark.usefixtures("warm_commands")
def test_torchrun_starts_its_processes_again_and_they_go_on_from_the_checkpoint(tmp_path, istbench, dying):
    run = ["run", "--method", "dying", "--json"]
    words = [*run, *dying(1), "--out", tmp_path / "lost"]
    status, out, said = run_on_one(words, "--max-restarts", 1)
    assert status == 0, said
    assert "worker 1 was killed by SIGKILL" in said
    (events,) = (RunDirectory(path).events() for path in tmp_path.glob("lost/runs/*"))
    assert [event.step > 0 for event in events if isinstance(event, Resume)] == [True]
    _, undisturbed, _ = istbench(*run, *dying(0), "--nodes", 2, "--out", tmp_path / "whole")
    assert json.loads(undisturbed)["weights_sha256"] == json.loads(out)["weights_sha256"]


def endings(out):
    return {cell["cell"].split("-")[1]: cell["ended"] for cell in json.loads(out)["cells"]}


@pytest.mark.processes
def test_a_comparison_goes_on_after_a_loss_and_tries_once_more_at_its_end(tmp_path, istbench, dying):
    compare = ["compare", "--methods", "dying,ddp", "--nodes", 1, "--json"]
    status, out, said = istbench(*compare, *dying(1, victim="0"), "--out", tmp_path / "once")
    assert status == 0, said
    assert endings(out) == {"dying": "done", "ddp": "done"}
    assert "second pass" not in said
    (caution,) = {
        note for table in json.loads(out)["tables"] for note in table["notes"] if "restarted once" in note
    }
    assert "1 of 2 runs consist of different parts, for example dying on 1 node seed 0, restarted once" in caution
    status, out, said = istbench(*compare, *dying(2, victim="0"), "--out", tmp_path / "twice")
    assert status == 0, said
    assert endings(out) == {"dying": "done", "ddp": "done"}
    assert "second pass: 1 of 2 cells failed by a loss" in said
    status, out, said = istbench(*compare, *dying(1, victim="0"), "--out", tmp_path / "none", "--restarts", 0)
    assert status == 1
    assert endings(out) == {"dying": "failed", "ddp": "done"}
    assert "second pass" not in said


@pytest.mark.parametrize(
    ("number", "reason"),
    [("-1", "at least 0"), ("101", "at most 100"), ("many", "whole"), ("1.5", "whole"), ("", "whole")],
)
def test_an_impossible_number_of_restarts_is_refused(tmp_path, istbench, number, reason):
    status, _, said = istbench(
        "run", "--method", "ddp", "--workload", "toy", f"--restarts={number}", "--out", tmp_path
    )
    assert status == 2
    assert "--restarts" in one_line(said)
    assert reason in said
    assert not list(Path(tmp_path).iterdir())


def test_restarts_are_refused_under_torchrun_which_has_its_own(tmp_path, istbench, monkeypatch):
    for name, value in {
        "TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_PORT": "1", "MASTER_ADDR": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("istbench.launch.torchrun.meeting.leave", lambda _world, *ended: ended)
    status, _, said = istbench("run", "--method", "ddp", "--workload", "toy", "--restarts", 3, "--out", tmp_path)
    assert status == 2
    assert one_line(said) == (
        "istbench: --restarts 3: torchrun starts its own processes again; give torchrun --max-restarts 3, and "
        "leave --restarts out"
    )
    assert "RANK" in os.environ
