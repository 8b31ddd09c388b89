"""Export of a spec as YAML for other tools: a SkyPilot task, a ParallelCluster configuration."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal

from istbench import __version__
from istbench.aws.spec import ClusterSpec
from istbench.aws.template import TAG, stack_name
from istbench.launch.torchrun.secret import SECRET

Format = Literal["skypilot", "parallelcluster"]
_PORT = 29500
_SHARED = "/opt/istbench"


def export(spec: ClusterSpec, style: Format, region: str, max_hours: float) -> str:
    """Write `spec` as a file of another tool; a comment lists the differences."""
    if style == "skypilot":
        comment = (
            f"# SkyPilot task of istbench cluster {spec.cluster}: sky launch --secret {SECRET}=... FILE\n"
            "# SkyPilot ends idle machines, and decides itself about a placement group.\n"
        )
        return comment + "\n".join(_yaml(_skypilot(spec, region, max_hours))) + "\n"
    comment = (
        f"# ParallelCluster configuration of istbench cluster {spec.cluster}: pcluster create-cluster\n"
        "# Fill in SUBNET_ID. ParallelCluster ends idle machines; the head node costs money until you delete it.\n"
    )
    return comment + "\n".join(_yaml(_parallelcluster(spec, region, max_hours))) + "\n"


def _skypilot(spec: ClusterSpec, region: str, max_hours: float) -> dict[str, Any]:
    zone = f"/{spec.zone}" if spec.zone else ""
    run = (
        'first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
        # SkyPilot itself has no time limit for jobs.
        f"timeout --signal=INT {math.ceil(max_hours * 60)}m "
        "venv/bin/torchrun --nnodes $SKYPILOT_NUM_NODES --node-rank $SKYPILOT_NODE_RANK "
        f"--nproc-per-node 1 --rdzv-endpoint $first:{_PORT} "
        "-m istbench run --method ist --workload speech --out results\n"
    )
    return {
        "name": stack_name(spec.cluster),
        "num_nodes": spec.count,
        "resources": {
            "infra": f"aws/{region}{zone}",
            "instance_type": str(spec.instance_type),
            "use_spot": spec.spot,
            "disk_size": spec.volume_gib,
            "labels": {TAG.replace(":", "-"): spec.cluster},
            "autostop": {"idle_minutes": 10, "down": True},
        },
        "secrets": {SECRET: None},
        "setup": f"python3 -m venv venv\nvenv/bin/pip install -q 'istbench[speech]=={__version__}'\n",
        "run": run,
    }


def _parallelcluster(spec: ClusterSpec, region: str, max_hours: float) -> dict[str, Any]:
    volume = {"RootVolume": {"Size": spec.volume_gib, "Encrypted": True, "VolumeType": "gp3"}}
    network = {"SubnetIds": ["SUBNET_ID"], "PlacementGroup": {"Enabled": spec.placement_group}}
    machines = {
        "Name": "nodes",
        "InstanceType": str(spec.instance_type),
        "MinCount": 0,
        "MaxCount": spec.count,
    }
    queue = {
        "Name": "istbench",
        "CapacityType": "SPOT" if spec.spot else "ONDEMAND",
        "Networking": network,
        "ComputeSettings": {"LocalStorage": volume},
        # Minutes, for jobs without a limit of their own.
        "CustomSlurmSettings": {"MaxTime": math.ceil(max_hours * 60)},
        "ComputeResources": [machines],
    }
    return {
        "Region": region,
        "Image": {"Os": "ubuntu2404"},
        "Imds": {"ImdsSupport": "v2.0"},
        "HeadNode": {
            "InstanceType": "m5.large",
            "Networking": {"SubnetId": "SUBNET_ID"},
            "LocalStorage": volume,
            "Imds": {"Secured": True},
            "Iam": {"AdditionalIamPolicies": [{"Policy": "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"}]},
        },
        "SharedStorage": [
            {"Name": "work", "MountDir": _SHARED, "StorageType": "Ebs", "EbsSettings": {"Encrypted": True}}
        ],
        "Scheduling": {
            "Scheduler": "slurm",
            "SlurmSettings": {"ScaledownIdletime": 10},
            "SlurmQueues": [queue],
        },
        "Tags": [{"Key": TAG, "Value": spec.cluster}],
    }


def _yaml(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Write nested tables, lists, texts and numbers as lines of YAML; short texts are JSON, which YAML reads."""
    for key, part in value.items():
        if isinstance(part, dict):
            yield f"{indent}{_key(key)}:"
            yield from _yaml(part, f"{indent}  ")
        elif isinstance(part, list) and part and isinstance(part[0], dict):
            yield f"{indent}{_key(key)}:"
            for entry in part:
                first, *rest = _yaml(entry, f"{indent}    ")
                yield f"{indent}  - {first.strip()}"
                yield from rest
        elif isinstance(part, str) and "\n" in part:
            yield f"{indent}{_key(key)}: |"
            yield from (f"{indent}  {line}" for line in part.splitlines())
        else:
            yield f"{indent}{_key(key)}: {json.dumps(part)}"


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)
