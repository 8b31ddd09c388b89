"""Planned memory of a node over the measured peak, for small real cells of every method, as a markdown table.

python scripts/bench/plan_memory.py --widths 16 --methods zero --workload-set clips_per_word=12    # to try it
"""

import argparse
import os

from cells import run_cell

from istbench.base.options.run import RunRequest
from istbench.cluster.profile import load_profile
from istbench.plan.planner import make_plan

_METHODS = ("ddp", "zero", "fsdp", "local_sgd", "ist", "parameter_server", "p3")
_GIVEN_BACK = 2**18  # the allocator returns freed blocks of this many bytes to the system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="speech")
    parser.add_argument("--workload-set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--methods", nargs="+", default=_METHODS)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    # Return memory that the allocator keeps after it was freed, for example by an evaluation before training.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(_GIVEN_BACK)
    print("| workload | method | planned MB per node | measured peak | planned / measured |")
    print("| --- | --- | ---: | ---: | ---: |")
    for width in arguments.widths:
        for method in arguments.methods:
            _compare(arguments, width, method)


def _compare(arguments: argparse.Namespace, width: int, method: str) -> None:
    settings = [f"hidden={width}", *arguments.workload_set]
    own = [*arguments.set, *(["local_steps=2"] if method in ("ist", "local_sgd") else [])]
    plan = make_plan(
        RunRequest(
            workload=arguments.workload,
            method=method,
            nodes=arguments.nodes,
            workload_options=dict(text.split("=") for text in settings),
            method_options=dict(text.split("=") for text in own),
        ),
        load_profile("m5.2xlarge"),
        limits=False,
    )
    options = [part for text in settings for part in ("--workload-set", text)]
    options += [part for text in own for part in ("--set", text)]
    result = run_cell(
        "--workload", arguments.workload, "--method", method, "--nodes", arguments.nodes,
        "--steps", arguments.steps, *options,
    )  # fmt: skip
    peak = result["peak_memory_bytes_per_node"]
    assert plan.memory is not None
    planned = plan.memory.total - plan.memory.data  # it exists before training, so the measurement leaves it out
    label = " ".join([arguments.workload, *settings, *arguments.set])
    print(f"| {label} | {method} | {planned / 1e6:.1f} | {peak / 1e6:.1f} | {planned / peak:.3f} |", flush=True)


if __name__ == "__main__":
    main()
