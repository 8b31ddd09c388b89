"""The grid of local steps, bandwidths and latencies."""

import csv
import importlib
import math
import statistics
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from fake_runs import averaging_trace, header, ramp, write_run

from istbench.base.errors import diverged
from istbench.cluster.in_turns import FAR_S

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture
def grid(monkeypatch):
    """Runs the program; returns the rows of its table by method, local steps, latency and Mbit/s."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    program = importlib.import_module("grid")

    def run(results, target, *options):
        monkeypatch.setattr(sys, "argv", ["grid.py", str(results), str(target), *options])
        program.main()
        with (target / "grid.csv").open() as file:
            return {
                (row["method"], int(row["every"]), float(row["latency_s"]), float(row["mbit_per_s"])): row
                for row in csv.DictReader(file)
            }

    return run


def write(results, method, seed, best, nodes=4, end=None, **options):
    every = next(iter(options.values()), 1)
    label = " ".join(f"{name}={value}" for name, value in options.items())
    head = header(method, seed=seed, nodes=nodes, options=label)
    head = {**head, "config": {**head["config"], "method_options": options}, **(end or {})}
    write_run(results, head, ramp(9.0, best), trace=averaging_trace(nodes, local_steps=every))


def median_of_curves(path, method, every, cluster, *, level):
    """The median over seeds of the seconds to the level, from the published curves alone."""
    curves = defaultdict(list)
    for row in csv.DictReader(path.open()):
        label = row["method_label"]
        if row["method"] == method.split()[0] and (str(every) in label if every > 1 else "accumulate" not in label):
            curves[row["cell"]].append((float(row["accuracy"]), float(row[f"cluster_s {cluster}"])))
    times = []
    for curve in curves.values():
        (low, before), (high, after) = next(pair for pair in pairwise(curve) if pair[1][0] >= level)
        times.append(before + (level - low) / (high - low) * (after - before))
    return statistics.median(times)


def test_seconds_follow_from_the_links_and_misses_are_counted(grid, tmp_path):
    results = tmp_path / "results"
    for seed in range(3):
        write(results, "ddp", seed, 0.9)
        write(results, "ddp", seed, 0.8, accumulate=4)
        write(results, "local_sgd", seed, 0.9 if seed else 0.6, local_steps=20)
    rows = grid(results, tmp_path / "all")
    assert len(rows) == 3 * 4 * 2
    for key, row in rows.items():
        assert (row["reached"], row["seeds"]) == ("3", "3"), key  # 0.6 is the level that all reach
    for (method, every, latency, megabits), row in rows.items():
        link = f"{megabits:g} Mbit/s" if megabits < 1000 else f"{megabits / 1000:g} Gbit/s"
        cluster = f"m5.2xlarge with {1000 * latency:g} ms at {link}"
        recomputed = median_of_curves(tmp_path / "all" / "evaluations.csv", method, every, cluster, level=0.6)
        assert recomputed == pytest.approx(float(row["seconds"]), rel=1e-4)
    # ddp is there after 2/3 of its 100 steps. In each, 1 MB takes 6 messages of 4 nodes. Near, in gloo's ring, the
    # second segment of each waits for a latency less 30 % of their time; far away a node sends three at once.
    for latency in (0.001, 0.03):
        for megabits in (50, 200):
            row = rows["ddp", 1, latency, megabits]
            flow = 0.25 * 8 / megabits
            near = 6 * (flow + latency + max(0.0, latency - 0.3 * flow))
            messages = near if latency < FAR_S / 2 else 6 * flow + 2 * latency
            assert float(row["seconds"]) == pytest.approx(100 * 2 / 3 * messages, rel=0.1), row
            assert float(row["megabytes"]) == pytest.approx(2 * 2 / 3, rel=1e-4)
    slow, fast = rows["ddp", 1, 0.03, 50], rows["ddp accumulate", 4, 0.001, 5000]
    assert float(slow["computing"]) < float(fast["computing"]) < 1
    harder = grid(results, tmp_path / "harder", "--level", "0.85")
    assert harder["ddp accumulate", 4, 0.001, 50.0]["seconds"] == ""
    assert [harder["local_sgd", 20, 0.001, 50.0][name] for name in ("reached", "seconds_high")] == ["2", ""]
    text = (tmp_path / "harder" / "README.md").read_text()
    assert "first to accuracy 0.85" in text
    assert (tmp_path / "harder" / "seconds.png").exists()


def test_a_diverged_seed_is_a_miss_and_an_open_run_is_refused(grid, tmp_path, capsys):
    results = tmp_path / "results"
    for seed in range(2):
        write(results, "ddp", seed, 0.9)
        write(results, "local_sgd", seed, 0.9, local_steps=20)
    end = {"status": "failed", "error": str(diverged(math.nan, "step 7 on node 1"))}
    write(results, "local_sgd", 2, 0.9, end=end, local_steps=20)
    row = grid(results, tmp_path / "all")["local_sgd", 20, 0.001, 50.0]
    assert [row[name] for name in ("reached", "seeds", "seconds_high")] == ["2", "3", ""]
    write(results, "ddp", 2, 0.9, end={"status": "running"})
    with pytest.raises(SystemExit):
        grid(results, tmp_path / "open")
    assert "has not finished; run the suite again" in capsys.readouterr().err


def test_options_tell_cells_apart_only_where_they_differ_for_as_many_local_steps(grid, tmp_path):
    for local_steps, rates in ((4, (0.1,)), (20, (0.1, 0.3))):
        for lr in rates:
            write(tmp_path, "diloco", 0, 0.9, local_steps=local_steps, lr=lr)
    for local_steps, lr in ((4, 0.1), (20, 0.3)):
        write(tmp_path, "local_sgd", 0, 0.9, local_steps=local_steps, lr=lr)
    write(tmp_path, "diloco", 0, 0.9, 1, local_steps=4, lr=0.1)
    rows = grid(tmp_path, tmp_path / "target", "--bandwidth", "1gbit", "--latency", "1ms")
    assert [key[:2] for key in rows] == [
        ("diloco lr=0.1", 4), ("diloco lr=0.1", 20), ("diloco lr=0.1, one node", 4), ("diloco lr=0.3", 20),
        ("local_sgd", 4), ("local_sgd", 20),
    ]  # fmt: skip
