"""Specs as files of other tools."""

import subprocess

import msgspec
import pytest

from istbench.aws.export import export
from istbench.aws.spec import Zone, preset


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
