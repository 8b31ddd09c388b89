"""The five tasks of docs/python.md: each runs as it stands, and the lines that commands and files would take."""

import re
import shutil
import sys
from pathlib import Path

import pytest

import istbench

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text()
ROW = re.compile(r"^\| ([a-z ]+) \| `(.+)` \| (\d+) \| (\d+) \|$", re.MULTILINE)
BY_COMMANDS = {
    "run one cell": """
import json, subprocess
words = "istbench run --workload toy --method ddp --nodes 2 --steps 40 --json".split()
done = subprocess.run(words, check=True, capture_output=True, text=True)
run = json.loads(done.stdout)
""",
    "compare two methods": """
import json, subprocess
import pandas as pd
words = "istbench compare --workload toy --methods ddp,local_sgd --steps 40 --json".split()
done = subprocess.run(words, check=True, capture_output=True, text=True)
tables = json.loads(done.stdout)["tables"]
frame = pd.DataFrame(tables[0]["rows"])
""",
    "load results as a table": """
import io, subprocess
import pandas as pd
words = "istbench report results --format csv --no-pictures".split()
done = subprocess.run(words, check=True, capture_output=True, text=True)
frame = pd.read_csv(io.StringIO(done.stdout))
""",
    "plot one curve": """
import json
from pathlib import Path
import matplotlib.pyplot as plt
(folder,) = Path("results/runs").glob("toy-ddp-*")
events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
found = [event for event in events if event["event"] == "evaluation"]
plt.plot([event["train_s"] for event in found], [event["metrics"]["accuracy"] for event in found])
""",
    "gate a build": """
import io, subprocess, sys
import pandas as pd
def final(results):
    words = f"istbench report {results} --format csv --no-pictures".split()
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    frame = pd.read_csv(io.StringIO(done.stdout))
    return frame.groupby(["method", "nodes"]).final_accuracy_median.median()
worse = final("results") < 0.95 * final("before")
if worse.any():
    sys.exit(f"worse: {list(worse[worse].index)}")
""",
}
"""What a script did before `import istbench` had these functions."""


@pytest.mark.processes
def test_each_task_of_the_page_is_as_short_as_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    rows = ROW.findall(PAGE)
    assert [task for task, *_ in rows] == list(BY_COMMANDS)
    space = {"istbench": istbench}
    for task, code, lines, other_lines in rows:
        other = compile(BY_COMMANDS[task], task, "exec")
        assert (int(lines), int(other_lines)) == (2, len(BY_COMMANDS[task].strip().splitlines()))
        if task == "gate a build":
            shutil.copytree("results", "before")
            exec(other, {})
        exec(code if "=" in code.split("(")[0] else f"shown = {code}", space)
        if task in ("load results as a table", "plot one curve"):
            by_commands = {}
            exec(other, by_commands)
            if "frame" in by_commands:
                assert set(by_commands["frame"].method) == set(space["frame"].method) == {"ddp", "local_sgd"}
            else:
                line, *_ = space["shown"].lines
                assert list(line.get_xdata()) == [event["train_s"] for event in by_commands["found"]]
    assert space["shown"] == []
    assert space["run"].header.status == "done"
    assert len(space["results"]) == 2
