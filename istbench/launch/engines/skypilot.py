"""A task of SkyPilot, for `sky launch`."""

import re
from typing import Any

from istbench.base.errors import UserError, shown
from istbench.launch.engines.job import EngineJob
from istbench.launch.engines.yaml import yaml
from istbench.launch.torchrun.secret import SECRET

_BUCKET = r"(s3|gs)://[a-z0-9][a-z0-9.-]+[a-z0-9](/[A-Za-z0-9._-]+)*"
_MOUNTED = "/istbench-results"
_WHEELS = ".istbench-wheel"
_WORK = 'work="$HOME/.istbench"\n'


def file_of(job: EngineJob) -> str:
    """The text of the file.

    Raises:
        UserError: if there is no such wheel, or no such bucket.
    """
    if job.wheel and not job.wheel.is_file():
        raise UserError(
            f"--install {shown(job.install)} is no file; `pip wheel --no-deps --wheel-dir dist .` makes the wheel "
            "of a checkout, or give an address"
        )
    kept = (
        f"Results: {job.results}. SkyPilot deletes the machines ten minutes after the end."
        if job.results
        else f"Results: ~{_MOUNTED} of the first machine. SkyPilot stops the machines ten minutes after the end; "
        "`sky down` deletes them with the results."
    )
    launch = f"sky launch --secret {SECRET}=$(openssl rand -hex 32) THIS_FILE"
    return job.comment(launch, kept) + yaml(task(job))


def task(job: EngineJob) -> dict[str, Any]:
    """The task as SkyPilot's schema has it.

    Raises:
        UserError: if `results` is no bucket.
    """
    if job.results and not re.fullmatch(_BUCKET, job.results):
        raise UserError(
            f"--results {shown(job.results)} is no bucket; give s3://BUCKET or gs://BUCKET for skypilot"
        )
    mounts: dict[str, Any] = {}
    if job.wheel:
        mounts[f"~/{_WHEELS}/{job.wheel.name}"] = str(job.wheel)
    if job.results:
        mounts[_MOUNTED] = {"source": job.results, "mode": "MOUNT_CACHED"}
    out = _MOUNTED if job.results else f"$HOME{_MOUNTED}"
    first = "first=$(printf '%s\\n' \"$SKYPILOT_NODE_IPS\" | head -n 1)\n"
    return {
        "name": job.name,
        "num_nodes": job.nodes,
        "resources": {
            "infra": "aws",
            "instance_type": job.machine.name,
            **({"image_id": f"docker:{job.image}"} if job.image else {}),
            "disk_size": 64,
            "autostop": {"idle_minutes": 10, "down": bool(job.results)},
        },
        "secrets": {SECRET: None},
        **({"file_mounts": mounts} if mounts else {}),
        "setup": "set -eu\n" + _WORK + job.setup(f'"$HOME"/{_WHEELS}'),
        # No `set -e`: SkyPilot appends lines that wait until the bucket has everything.
        "run": _WORK + first + job.run("$SKYPILOT_NODE_RANK", "$first", out),
    }
