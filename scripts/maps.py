"""Train the runs of a map, and write the map: the first method by bandwidth and number of nodes.

    python scripts/maps.py speech RESULTS                                  # about 50 minutes on two idle cores
    python scripts/maps.py text RESULTS --data input.txt                   # about 30
    python scripts/maps.py cifar10 RESULTS --data DIR                      # about 70
    python scripts/maps.py text RESULTS --no-training --targets 2.4,2.1    # a map for each level
    python scripts/maps.py speech RESULTS --no-training --into TARGET      # to try it

Each name has a suite in configs/light, which `istbench compare` trains in RESULTS. Finished runs are not run
again, so a RESULTS of earlier runs of the same suite takes only the replays. With --no-training, RESULTS may hold
any runs. The script writes README.md (the table), map.json (its cells), evaluations.csv (the curve of every run,
with its seconds on every link) and the pictures to results/map-NAME, or --into. It prints the row for
results/README.md. If other programs ran beside the training, first record the seconds again, on an idle machine:
istbench retrace RESULTS.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import select_clusters
from istbench.report.map import WinnerMap, build_maps
from istbench.report.output.formats import table_markdown
from istbench.report.output.map_picture import draw_maps
from istbench.results.frame import write_evaluations

ROOT = Path(__file__).parent.parent
WITHOUT_DATA = ("speech",)
SUITES = {"speech": "map-speech", "text": "text", "cifar10": "map-cifar10"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SUITES)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", help="text file or directory of images, for the suites that need one")
    parser.add_argument("--no-training", action="store_true", help="take the runs that are there")
    parser.add_argument("--into", type=Path, help="default: results/map-NAME")
    parser.add_argument("--cluster", default="m5.2xlarge", help="its nodes compute")
    parser.add_argument("--bandwidth", default="10mbit,30mbit,100mbit,300mbit,1gbit,3gbit,10gbit")
    parser.add_argument(
        "--targets", type=levels, default=(None,), help="levels of the metric; default: the hardest one reached"
    )
    arguments = parser.parse_args()
    if not arguments.no_training:
        train(arguments.name, arguments.results, arguments.data)
    target = arguments.into or ROOT / "results" / f"map-{arguments.name}"
    clusters = select_clusters(
        [arguments.cluster], [parse_bandwidth(text) for text in arguments.bandwidth.split(",")]
    )
    found = list[WinnerMap]()
    for level in arguments.targets:
        maps, problems = build_maps(arguments.results, clusters, cluster=arguments.cluster, target=level)
        if problems:
            raise SystemExit("\n".join(problems))
        found += maps
    maps = [dataclasses.replace(one, stem=f"map-{place}" if place else "map") for place, one in enumerate(found)]
    target.mkdir(parents=True, exist_ok=True)
    drawn = [path for path in draw_maps(maps, target) if path.suffix == ".png"]
    shown = "\n".join(f"![{path.stem}]({path.name})" for path in drawn)
    tables = "\n".join(table_markdown(one.table()) for one in maps)
    wanted = ",".join(f"{level:g}" for level in arguments.targets if level is not None)
    data = [] if arguments.name in WITHOUT_DATA else ["--data", "FILE" if arguments.name == "text" else "DIR"]
    words = ["scripts/maps.py", arguments.name, "RESULTS", *data, *(["--targets", wanted] if wanted else [])]
    made = f"`python {' '.join(words)}` trains the runs and writes this page."
    verdicts = " ".join(verdict(one) for one in maps)
    (target / "README.md").write_text(f"# {target.name}\n\n{verdicts}\n{made}\n\n{shown}\n\n{tables}")
    write_evaluations(
        arguments.results,
        target / "evaluations.csv",
        [profile for family in clusters.values() for profile in family],
    )
    records = [record for one in maps for record in one.records()]
    (target / "map.json").write_text(json.dumps(records, indent=1, allow_nan=False) + "\n")
    page, about = f"{target.name}/README.md", f"The first method on {arguments.name}, by bandwidth and nodes"
    small = [f'[<img src="{target.name}/{path.name}" width="180" alt="{about}">]({page})' for path in drawn[:1]]
    print(f"| {''.join(small)} | [{target.name}]({page}): {about} | {verdicts} |")


def levels(text: str) -> tuple[float, ...]:
    """The numbers between the commas of `text`."""
    return tuple(float(level) for level in text.split(","))


def verdict(found: WinnerMap) -> str:
    """In how many cells each method is first, the first ones are too close, one ran alone, or nobody arrives."""
    if found.sentence:
        return found.sentence
    tiles = [tile for row in found.tiles for tile in row]
    firsts = Counter(tile.winner for tile in tiles if tile.winner is not None)
    kinds = Counter(tile.verdict for tile in tiles)
    parts = [
        *(f"`{name}` in {cells}" for name, cells in firsts.most_common()),
        *([f"too close in {kinds['close']}"] if kinds["close"] else []),
        *([f"only one method ran in {kinds['only']}"] if kinds["only"] else []),
        *([f"nobody in {kinds['nobody']}"] if kinds["nobody"] else []),
    ]
    return f"First to {found.target.of(found.group.metric)}, of {len(tiles)} cells: {', '.join(parts)}."


def train(name: str, results: Path, data: str | None) -> None:
    """Run the suite of `name` in `results`; finished cells are not run again."""
    suite = ROOT / "configs" / "light" / f"{SUITES[name]}.toml"
    words = [sys.executable, "-m", "istbench", "compare", str(suite), "--out", str(results)]
    subprocess.run([*words, *(["--data", data] if data else [])], check=True)


if __name__ == "__main__":
    main()
