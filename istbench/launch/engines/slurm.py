"""A script for `sbatch`: one job with a task on each node, in a container of Pyxis if there is an image."""

import math
import shlex
from pathlib import PurePosixPath

from istbench.base.errors import UserError, shown
from istbench.launch.engines.job import EngineJob
from istbench.launch.torchrun.secret import SECRET

RESULTS = "istbench-results"


def file_of(job: EngineJob) -> str:
    results = job.results or RESULTS
    comment = job.comment("sbatch THIS_FILE", "Results: a directory that all nodes share.")
    options = [
        f"job-name={job.name}",
        f"nodes={job.nodes}",
        "ntasks-per-node=1",
        "exclusive",
        *([f"gpus-per-node={job.gpus}"] if job.gpus else []),
        f"time={math.ceil(job.limit_s / 60)}",
        # A job that Slurm queues again, because a machine failed, goes on; with --again it would begin anew.
        "no-requeue" if "--again" in job.words else "requeue",
    ]
    container = ""
    if job.image:
        if set(results) & set(",:"):
            raise UserError(
                f"--results {shown(results)} has a comma or colon, which no mount of a container can have"
            )
        container = f'--container-image={shlex.quote(_enroot(job.image))} --container-mounts="$results:$results" '
    return (
        "#!/bin/bash\n"
        + "".join(f"#SBATCH --{option}\n" for option in options)
        + comment
        + "set -eu\n"
        + f"export results={_absolute(results)}\n"
        + ('mkdir -p "$results"\n' if job.image else "")
        + 'export first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        + f"export {SECRET}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\n"
        + "node() {\n"
        + "set -eu\n"
        + "work=$(mktemp -d)\n"
        + "trap 'rm -rf \"$work\"' EXIT\n"
        + job.setup(_absolute(str(job.wheel.parent)) if job.wheel else "")
        + job.run("$SLURM_NODEID", "$first", "$results")
        + "}\n"
        + f'srun --kill-on-bad-exit=1 {container}bash -c "$(declare -f node); node"\n'
    )


def _enroot(image: str) -> str:
    """The name of `image` for Pyxis: a registry, which has a dot or a port, ends in `#`."""
    registry, slash, path = image.partition("/")
    return f"{registry}#{path}" if slash and set(registry) & set(".:") else image


def _absolute(path: str) -> str:
    """Shell for `path`, which counts from the directory of `sbatch`."""
    return shlex.quote(path) if PurePosixPath(path).is_absolute() else f'"$SLURM_SUBMIT_DIR"/{shlex.quote(path)}'
