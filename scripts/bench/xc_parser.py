"""MB/s of readers of repository text, as a markdown table: this project's, a plain Python one, scikit-learn's.

scikit-learn reads the same points as SVMlight text. Rounds of the readers alternate, so that other work of the
machine affects all of them.

    python scripts/bench/xc_parser.py TEXT --times 1    # to try it
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from spread import spread

from istbench.workloads.extreme_data.read import read_points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="repository text, such as train.txt")
    parser.add_argument("--times", type=int, default=5, help="rounds")
    arguments = parser.parse_args()
    megabytes = arguments.file.stat().st_size / 1e6
    with tempfile.TemporaryDirectory() as folder:
        points = Path(folder) / "points.svm"
        points.write_text(arguments.file.read_text().partition("\n")[2])
        readers: dict[str, Callable[[], int]] = {"istbench": lambda: ours(arguments.file)}
        readers["plain Python"] = lambda: plain(arguments.file)
        try:
            from sklearn.datasets import load_svmlight_file
        except ImportError:
            print("scikit-learn is not installed, so it is left out (pip install scikit-learn)")
        else:
            readers["load_svmlight_file"] = lambda: load_svmlight_file(str(points), multilabel=True)[0].nnz
        seconds = measured(readers, arguments.times)
    print("| reader | MB/s, median [min-max] | istbench is faster by, median [min-max] |")
    print("| --- | ---: | ---: |")
    for name, own in seconds.items():
        speeds = [megabytes / second for second in own]
        ratios = [second / fast for second, fast in zip(own, seconds["istbench"], strict=True)]
        print(f"| {name} | {spread(speeds, 1)} | {spread(ratios, 1)} |")


def measured(readers: dict[str, Callable[[], int]], times: int) -> dict[str, list[float]]:
    """Seconds of every reader, by rounds, without the first round; all must find the same number of entries."""
    found = {name: read() for name, read in readers.items()}
    if len(set(found.values())) > 1:
        raise SystemExit(f"the readers found different numbers of entries: {found}")
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(times):
        for name, read in readers.items():
            started = time.perf_counter()
            read()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def ours(path: Path) -> int:
    """Entries of `path`, by this project's reader."""
    return sum(int(points.features.ends[-1]) for points in read_points(path))


def plain(path: Path) -> int:
    """Entries of `path`, by a reader that splits line by line and checks nothing."""
    columns: list[int] = []
    values: list[float] = []
    labels: list[int] = []
    with path.open() as file:
        next(file)
        for line in file:
            words = line.split(" ")
            labels.extend(map(int, filter(None, words[0].split(","))))
            for word in words[1:]:
                column, value = word.split(":")
                columns.append(int(column))
                values.append(float(value))
    return len(np.array(columns, np.int32)) if np.array(values, np.float32).size else 0


if __name__ == "__main__":
    main()
