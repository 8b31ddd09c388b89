"""Memory of a node for the Amazon-670K network, by width and method, as in the IST paper's column of failures.

Prints the table of results/paper-amazon670k/README.md in markdown.

    python scripts/paper/amazon670k_plan.py --widths 512 --methods fsdp --optimizers sgd    # to try it
"""

import argparse

from istbench.cluster.estimate import GIB, CellPlan
from istbench.cluster.profile import load_profile
from istbench.plan.planner import PlanRequest, make_plan


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[512, 1024, 1536, 2048, 2560])
    parser.add_argument("--methods", nargs="+", default=["ddp", "zero", "fsdp", "ist"])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--cluster", default="p3.2xlarge")
    parser.add_argument("--optimizers", nargs="+", default=["adam", "sgd"])
    arguments = parser.parse_args()
    cluster = load_profile(arguments.cluster)
    print(f"A node of {cluster.name} has {cluster.memory_gib:g} GiB for a model. {arguments.nodes} nodes.\n")
    print(
        "| method | optimizer | hidden | GiB a node | fits | GB sent a round | s a round | its steps | published |"
    )
    print("| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | --- |")
    for method in arguments.methods:
        for optimizer in arguments.optimizers:
            for width in arguments.widths:
                plan = make_plan(
                    PlanRequest(
                        workload="amazon670k",
                        method=method,
                        nodes=arguments.nodes,
                        cluster=cluster,
                        workload_options={"hidden": width},
                        method_options={"optimizer": optimizer},
                        limits=False,
                    )
                )
                print(_row(plan, method, optimizer, width), flush=True)


def _row(plan: CellPlan, method: str, optimizer: str, width: int) -> str:
    assert plan.memory is not None
    assert plan.sent is not None
    # On eight V100s of 16 GB.
    published = {"ddp": "trained" if width == 512 else "failed", "ist": "trained"}.get(method, "")
    fits = "yes" if plan.fits else f"no, {(plan.memory.total - plan.limit) / GIB:.1f} GiB short"
    seconds = "" if plan.seconds is None else f"{plan.seconds:.2f}"
    cells = (
        method, optimizer, f"{width:,}", f"{plan.memory.total / GIB:.2f}", fits, f"{plan.sent / 1e9:.2f}", seconds,
        str(plan.round_steps), published,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
