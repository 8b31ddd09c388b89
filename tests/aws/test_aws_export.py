"""What machines are told: exact command lines, sound shell; files of other tools."""

import shlex
import subprocess

import msgspec
import pytest

from istbench.aws.commands import (
    RESULTS,
    errand,
    keep_lines,
    node_words,
    prepare_lines,
    start_lines,
    stop_lines,
)
from istbench.aws.export import export
from istbench.aws.spec import PipArgument, Zone, preset
from istbench.errors import UserError

RUN = ["run", "--method", "ist", "--workload", "toy"]


def test_training_goes_under_torchrun_with_the_first_machine_as_meeting_point():
    words = node_words(RUN, 1, ["10.80.0.5", "10.80.0.9", "10.80.0.7"])
    assert shlex.join(words) == (
        "/opt/istbench/venv/bin/torchrun --nnodes 3 --node-rank 1 --nproc-per-node 1 --rdzv-endpoint "
        "10.80.0.5:29500 -m istbench run --method ist --workload toy --out /opt/istbench/results"
    )
    assert node_words(["data", "speech"], 1, ["a", "b"]) == ["/opt/istbench/venv/bin/istbench", "data", "speech"]


def test_profiles_plug_ins_and_data_go_along(tmp_path):
    profile, plugin, data = tmp_path / "mine.toml", tmp_path / "mine.py", tmp_path / "clips"
    profile.touch()
    plugin.touch()
    data.mkdir()
    asked = errand(["run", "--cluster", str(profile), f"--plugin={plugin}", "--data", str(data)])
    files = "/opt/istbench/files"
    profile_there, plugin_there = f"{files}/mine.toml", f"--plugin={files}/mine.py"
    there = ("run", "--cluster", profile_there, plugin_there, "--data", "/opt/istbench/data/clips")
    assert asked.words == there
    assert (asked.files, asked.data) == ({"mine.toml": profile, "mine.py": plugin}, data)
    assert errand(["run", "--data", "/mnt/there"]).words == ("run", "--data", "/mnt/there")


@pytest.mark.parametrize(
    ("given", "saved"),
    [("weights", "saved/weights"), ("/tmp/w.py", "saved/tmp/w.py"), ("../ist/w", "saved/ist/w"), (".", "saved")],
)
def test_weights_are_saved_among_the_results_which_come_back(given, saved):
    there = f"{RESULTS}/{saved}"
    for words, wanted in ((["--save", given], ["--save", there]), ([f"--save={given}"], [f"--save={there}"])):
        asked = errand(["run", *words, "--workload", "toy"])
        assert asked.words == ("run", *wanted, "--workload", "toy")
        assert str(asked.saved) == saved
    assert errand(RUN).saved is None
    assert errand(["run", "--save"]).words == ("run", "--save")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to run; write it after --"),
        (["rum"], "unknown command for a cluster 'rum'; did you mean 'run'"),
        (["run", "--out", "x"], "leave out --out: results come back by `istbench aws fetch`"),
        (["run", "--hosts=a,b"], "leave out --hosts"),
        (["run", "--cluster", "none.toml"], "no file 'none.toml' here"),
        (["compare", "suite.toml"], "compare does not run on several machines"),
    ],
)
def test_what_makes_no_sense_there_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        errand(words)


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").touch()
    with pytest.raises(UserError, match="have one name; rename one of them"):
        errand(["run", "--plugin", str(tmp_path / "a/mine.py"), "--plugin", str(tmp_path / "b/mine.py")])


def test_what_machines_are_told_is_sound_shell():
    spec = msgspec.structs.replace(preset("2xp3.2xlarge"), pip_arguments=[PipArgument("--find-links=a b")])
    told = [
        *prepare_lines(spec, region="us-east-1", bucket="b", wheel="wheel/1/istbench-1.whl", requirement="1"),
        *prepare_lines(spec, region="us-east-1", bucket="b", wheel=None, requirement="istbench==1; x"),
        *start_lines(node_words(RUN, 0, ["a"]), rank=0, region="us-east-1", bucket="b", run="R", linger_minutes=15),
        *stop_lines(),
    ]
    checked = subprocess.run(["sh", "-n"], input="\n".join(told), text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert any(
        "'--find-links=a b' 'istbench[speech,aws] @ file:///opt/istbench/istbench-1.whl'" in line for line in told
    )
    assert any("'istbench==1; x' boto3" in line for line in told)


def test_whatever_ends_a_run_the_machine_then_ends_itself():
    lines = start_lines(node_words(RUN, 0, ["a"]), rank=0, region="r", bucket="b", run="R", linger_minutes=7)
    words = shlex.split(lines[-1])
    (after,) = [word for word in words if word.startswith("--property=ExecStopPost=")]
    assert after.endswith("--on-active=7m /sbin/shutdown -P now")
    assert "--property=KillSignal=SIGINT" in words
    # A run that starts while the machine lingers keeps it.
    assert any(line.startswith("systemctl stop istbench-linger.timer") for line in lines)


@pytest.mark.parametrize("lingers", [True, False])
def test_a_machine_that_lingers_is_kept_for_longer_and_another_is_left_as_it_is(tmp_path, lingers):
    called = tmp_path / "called"
    for name, status in (("systemctl", "test $1 != is-active || exit $LINGERS"), ("systemd-run", "")):
        command = tmp_path / name
        command.write_text(f'#!/bin/sh\necho {name} "$@" >> {called}\necho printed\n{status}\n')
        command.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LINGERS": str(int(not lingers))}
    told = subprocess.run(["sh", "-eu", "-c", keep_lines(45)[0]], env=path, capture_output=True, text=True)
    assert told.returncode == 0
    calls = called.read_text().splitlines()
    assert calls[0] == "systemctl is-active --quiet istbench-linger.timer"
    kept = "systemd-run --quiet --unit=istbench-linger --on-active=45m /sbin/shutdown -P now"
    stopped = ["systemctl stop istbench-linger.timer", "systemctl reset-failed istbench-linger.service"]
    assert calls[1:] == [*stopped, kept] * lingers


def test_a_skypilot_task_is_yaml_with_what_the_spec_says():
    yaml = pytest.importorskip("yaml")
    spec = msgspec.structs.replace(preset("4xm5.2xlarge"), spot=True, zone=Zone("us-east-1b"))
    text = export(spec, "skypilot", "us-east-1", 1.5)
    task = yaml.safe_load(text)
    assert (task["num_nodes"], task["resources"]["instance_type"]) == (4, "m5.2xlarge")
    assert task["resources"]["infra"] == "aws/us-east-1/us-east-1b"
    assert (task["resources"]["use_spot"], task["resources"]["disk_size"]) == (True, 64)
    assert task["resources"]["autostop"] == {"idle_minutes": 10, "down": True}
    assert task["secrets"] == {"ISTBENCH_SECRET": None}  # asked for when it is launched
    assert "timeout --signal=INT 90m venv/bin/torchrun --nnodes $SKYPILOT_NUM_NODES" in task["run"]
    assert subprocess.run(["bash", "-n"], input=task["run"], text=True, capture_output=True).stderr == ""


def test_a_parallelcluster_configuration_is_yaml_with_what_the_spec_says():
    yaml = pytest.importorskip("yaml")
    made = yaml.safe_load(export(preset("8xp3.2xlarge"), "parallelcluster", "us-west-2", 2))
    (queue,) = made["Scheduling"]["SlurmQueues"]
    assert queue["ComputeResources"] == [
        {"Name": "nodes", "InstanceType": "p3.2xlarge", "MinCount": 0, "MaxCount": 8}
    ]
    assert (made["Region"], queue["CapacityType"], queue["CustomSlurmSettings"]) == (
        "us-west-2", "ONDEMAND", {"MaxTime": 120},
    )  # fmt: skip
    assert queue["Networking"]["PlacementGroup"] == {"Enabled": True}
    assert made["Imds"] == {"ImdsSupport": "v2.0"}
