"""Put the runs of `istbench compare example` into the package, for `istbench report --example`.

    istbench compare example --out DIR    # on an idle machine
    python scripts/freeze_example.py DIR
    python scripts/freeze_example.py RESULTS --into TARGET    # to try it

The runs replace those that are there. Their headers keep no path of the machine.
"""

import argparse
import json
import shutil
from pathlib import Path

from istbench.base.shipped import example_results
from istbench.results.load import load_runs


def freeze(results: Path, example: Path) -> None:
    """Copy the finished runs in `results` to `example`, in place of those there, without paths of this machine.

    Raises:
        SystemExit: if a run has not finished, or cannot be read.
    """
    runs, problems = load_runs(results)
    problems += [f"{run.directory.path} is not done" for run in runs if not run.done]
    if problems:
        raise SystemExit("\n".join(problems))
    shutil.rmtree(example, ignore_errors=True)
    for run in runs:
        copy = example / "runs" / run.header.cell
        copy.mkdir(parents=True)
        for name in ("events.jsonl", "trace.npz"):
            shutil.copyfile(run.directory.path / name, copy / name)
        header = json.loads(run.directory.run_json.read_bytes())
        header["data_source"]["path"] = Path(header["data_source"]["path"]).name
        (copy / "run.json").write_text(json.dumps(header, indent=1) + "\n")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the results directory of the new runs")
    parser.add_argument("--into", type=Path, default=example_results(), help="default: the package's")
    given = parser.parse_args()
    freeze(given.results, given.into)


if __name__ == "__main__":
    main()
