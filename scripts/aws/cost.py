"""The cost of the IST paper's published runs on AWS, from their seconds and the prices of the profiles.

A run takes as long as the published one to its highest level, on 8 machines as in the figures. This prints the
table in docs/clouds.md:

    python scripts/aws/cost.py    # to try it
"""

from collections import defaultdict

from istbench.cluster.profile import load_profile
from istbench.studies.reproduce.figures import Figure, read_rows
from istbench.studies.reproduce.paper import PUBLISHED

MACHINES = {"speech": "m5.2xlarge", "cifar10": "p3.2xlarge", "imagenet": "p3.2xlarge"}


def main() -> None:
    seconds: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    nodes: dict[tuple[str, str], int] = {}
    for figure in read_rows(PUBLISHED / "figures.csv", Figure):
        if figure.seconds is not None and figure.nodes is not None:
            key = (figure.workload, " ".join(f"{name}={value}" for name, value in figure.options.items()))
            seconds[key][figure.label] = max(seconds[key].get(figure.label, 0.0), figure.seconds)
            nodes[key] = figure.nodes
    print("| workload | machines | runs | hours, all one after another | dollars | of them `ddp` |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for key, runs in seconds.items():
        machine = load_profile(MACHINES[key[0]])
        hourly = nodes[key] * machine.price_per_hour
        hours, parallel = (value / 3600 for value in (sum(runs.values()), runs["ddp"]))
        print(
            f"| `{' '.join(key).strip()}` | {nodes[key]} x {machine.name} | {len(runs)} | {hours:,.1f} | "
            f"${hours * hourly:,.0f} | ${parallel * hourly:,.0f} |"
        )


if __name__ == "__main__":
    main()
