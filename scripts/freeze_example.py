"""Put the runs of `istbench compare example` into the package, for `istbench report --example`.

istbench compare example --out DIR    # on an idle machine
python scripts/freeze_example.py DIR
"""

import json
import shutil
import sys
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


if __name__ == "__main__":
    freeze(Path(sys.argv[1]), example_results())
