"""A runtime and a `TrainJob` of Kubeflow Trainer, for `kubectl apply`."""

import re
from typing import Any

from istbench.base.errors import UserError, shown
from istbench.launch.engines.job import EngineJob
from istbench.launch.engines.yaml import yaml
from istbench.launch.torchrun.secret import SECRET

_API = "trainer.kubeflow.org/v1alpha1"
_IMAGE = "python:3.12"
_GROUP = 1000
_MOUNTED = "/mnt"
_CLAIM = "istbench-results"
_SECRET_NAME = "istbench"
# Kubeflow Trainer sets these for a runtime of torch.
_RANK, _FIRST = "$PET_NODE_RANK", "$PET_MASTER_ADDR"


def file_of(job: EngineJob) -> str:
    steps = (
        f"kubectl create secret generic {_SECRET_NAME} --from-literal={SECRET}=$(openssl rand -hex 32)",
        "kubectl apply -f THIS_FILE",
        f"Results: the volume of claim {_claim(job)}, which all nodes write to (ReadWriteMany).",
    )
    return job.comment(*steps) + "---\n".join(yaml(part) for part in objects(job))


def objects(job: EngineJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `TrainingRuntime` and the `TrainJob`. A `TrainJob` alone cannot choose the network of the host.

    Raises:
        UserError: if `results` is no name of a claim, or the pods cannot read the wheel.
    """
    if job.wheel:
        raise UserError(f"--install {shown(job.install)} is a local file, which pods cannot read; give an address")
    metadata = {"name": job.name}
    runtime = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": {**metadata, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": _job_template(job)}]}},
        },
    }
    train_job = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"apiGroup": _API.partition("/")[0], "kind": "TrainingRuntime", **metadata},
            "trainer": {"numNodes": job.nodes},
        },
    }
    return runtime, train_job


def _job_template(job: EngineJob) -> dict[str, Any]:
    others = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": job.name}}
    apart = {"labelSelector": others, "topologyKey": "kubernetes.io/hostname"}
    return {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {
            "activeDeadlineSeconds": job.limit_s,
            "backoffLimit": 0,
            "template": {
                "spec": {
                    # The network of the host has its full bandwidth, and all ports between the hosts.
                    "hostNetwork": True,
                    "dnsPolicy": "ClusterFirstWithHostNet",
                    "restartPolicy": "Never",
                    "nodeSelector": {"node.kubernetes.io/instance-type": job.machine.name},
                    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
                    "containers": [_container(job)],
                    # The user of an image writes to the claim by this group.
                    **({"securityContext": {"fsGroup": _GROUP}} if job.image else {}),
                    "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": _claim(job)}}],
                }
            },
        },
    }


def _container(job: EngineJob) -> dict[str, Any]:
    script = "set -eu\nwork=$(mktemp -d)\n" + job.setup() + job.run(_RANK, _FIRST, _MOUNTED)
    secret = {"name": _SECRET_NAME, "key": SECRET}
    return {
        "name": "node",
        "image": job.image or _IMAGE,
        "command": ["bash", "-c", script.replace("$", "$$")],  # Kubernetes would expand $(NAME)
        "env": [{"name": SECRET, "valueFrom": {"secretKeyRef": secret}}],
        **({"resources": {"limits": {"nvidia.com/gpu": job.gpus}}} if job.gpus else {}),
        "volumeMounts": [{"name": "results", "mountPath": _MOUNTED}],
    }


def _claim(job: EngineJob) -> str:
    claim = job.results or _CLAIM
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", claim):
        raise UserError(f"--results {shown(claim)} is no name of a PersistentVolumeClaim, such as {_CLAIM}")
    return claim
