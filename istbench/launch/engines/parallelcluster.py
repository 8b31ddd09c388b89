"""A configuration of AWS ParallelCluster, for `pcluster create-cluster`, with its job of Slurm as a comment."""

import dataclasses
import math
from typing import Any

from istbench.launch.engines import slurm
from istbench.launch.engines.job import EngineJob
from istbench.launch.engines.yaml import yaml

_SHARED = "/shared"


def file_of(job: EngineJob) -> str:
    results = job.results or f"{_SHARED}/{slurm.RESULTS}"
    steps = (
        "Replace SUBNET_ID and KEY_NAME. The head node costs money until delete-cluster.",
        f"pcluster create-cluster --cluster-name {job.name} --cluster-configuration THIS_FILE",
        f"sed -n 's/^#|//p' THIS_FILE | pcluster ssh --cluster-name {job.name} sbatch",
        *(["The image needs Pyxis, which ParallelCluster installs but does not switch on."] if job.image else []),
        f"Results: {results} of the head node. pcluster delete-cluster --cluster-name {job.name}",
    )
    script = slurm.file_of(dataclasses.replace(job, results=results))
    lines = "".join(f"#|{line}\n" for line in script[:-1].split("\n"))
    return job.comment(*steps) + yaml(configuration(job)) + lines


def configuration(job: EngineJob) -> dict[str, Any]:
    """The configuration as ParallelCluster's schema has it."""
    volume = {"RootVolume": {"Size": 64, "Encrypted": True, "VolumeType": "gp3"}}
    machines = {"Name": "nodes", "InstanceType": job.machine.name, "MinCount": 0, "MaxCount": job.nodes}
    queue = {
        "Name": "istbench",
        "Networking": {"SubnetIds": ["SUBNET_ID"], "PlacementGroup": {"Enabled": True}},
        "ComputeSettings": {"LocalStorage": volume},
        "CustomSlurmSettings": {"MaxTime": math.ceil(job.limit_s / 60)},
        "ComputeResources": [machines],
    }
    return {
        "Region": "us-east-1",
        "Image": {"Os": "ubuntu2404"},
        "Imds": {"ImdsSupport": "v2.0"},
        "HeadNode": {
            "InstanceType": "m5.large",
            "Networking": {"SubnetId": "SUBNET_ID"},
            "Ssh": {"KeyName": "KEY_NAME"},
            "LocalStorage": volume,
            "Imds": {"Secured": True},
        },
        "SharedStorage": [
            {"Name": "shared", "MountDir": _SHARED, "StorageType": "Ebs", "EbsSettings": {"Encrypted": True}}
        ],
        "Scheduling": {
            "Scheduler": "slurm",
            "SlurmSettings": {"ScaledownIdletime": 10},
            "SlurmQueues": [queue],
        },
    }
