"""The size of a report's page, the seconds to write it and to open it, as a markdown table.

The runs are made up: eight methods, five seeds, 50 evaluations, as many numbers of nodes as it takes, and each with
a trace of ten rounds. A process of its own writes each page by `istbench report --html`, and headless Chromium,
if there is one, opens it.

    python scripts/bench/page_cost.py --runs 3 --times 1 --no-browser    # to try it
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from spread import spread

from istbench.base.options.data_source import DataSource
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.cluster.trace_builder import TraceBuilder, merge
from istbench.cluster.trace_file import save_trace
from istbench.results.events import Evaluation, RunPart, Start
from istbench.results.header import SCHEMA, TIMING_RULE, Header, HostRecord, Result
from istbench.results.store import RunDirectory

METHODS = ("ddp", "ist", "local_sgd", "p3", "parameter_server", "zero", "fsdp", "streaming_ist")
SEEDS, NODES, STEPS_EACH = 5, (2, 4, 8, 16, 32), 20
BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")


def write_runs(results: Path, count: int, evaluations: int) -> None:
    """Write `count` finished runs into `results`."""
    cells = [(method, nodes, seed) for nodes in NODES for seed in range(SEEDS) for method in METHODS]
    if count > len(cells):
        raise SystemExit(f"--runs: at most {len(cells)}")
    for method, nodes, seed in cells[:count]:
        pace = 0.011 * (1 + METHODS.index(method) / 3) * (1 + seed / 50)
        events = [_evaluation(at, at * STEPS_EACH * pace, nodes, seed) for at in range(evaluations)]
        directory = RunDirectory(results / "runs" / f"speech-{method}-n{nodes}-s{seed}")
        head = _header(method, nodes, seed, events[-1], directory.path.name)
        directory.create(head)
        part = RunPart(host=head.host, threads=head.threads, versions=head.versions, git=head.git)
        lines = [Start(time="", part=part), *events]
        directory.events_jsonl.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        builder = TraceBuilder(clock=lambda: 0.0)
        for _ in range(10):
            builder.compute(pace)
            builder.wait(builder.post("all_reduce", 2_000_000))
            builder.mark("round")
            builder.mark("step")
        save_trace(merge([builder.to_arrays()] * nodes, gflops=50.0, batch_size=128), directory.trace)


def _evaluation(at: int, seconds: float, nodes: int, seed: int) -> Evaluation:
    step = at * STEPS_EACH
    return Evaluation(
        step=step, samples=step * 128 * nodes, train_s=seconds, wall_s=seconds * 1.21, assemble_s=0.01,
        evaluate_s=0.1, bytes_sent_per_node=step * 1_234_567, bytes_received_per_node=step * 1_234_567,
        train_loss=None if not at else 1.0 / at, metrics={"accuracy": 0.9 * (1 - 0.93**at) + seed / 1000},
    )  # fmt: skip


def _header(method: str, nodes: int, seed: int, last: Evaluation, cell: str) -> Header:
    config = RunConfig(
        workload="speech", method=method, workload_options={"hidden": 4096, "layers": 2},
        method_options={"lr": 0.1, "momentum": 0.9, "local_steps": 40}, nodes=nodes, seed=seed, batch_size=128,
        steps=last.step, eval_every=Interval(steps=STEPS_EACH), device="cpu", threads=1,
    )  # fmt: skip
    return Header(
        schema=SCHEMA, timing_rule=TIMING_RULE, cell=cell, status="done", workload="speech",
        workload_label="speech", method=method, method_label=method, nodes=nodes, seed=seed, threads=1,
        control_nodes=None, narrowed={}, batch_size=128, parameters=10_000_000, unit="", typed_data="", git=None,
        metric="accuracy", lower_is_better=False, targets=(0.6, 0.7, 0.8), data="synthetic",
        data_source=DataSource(kind="synthetic", fingerprint="00" * 32, train=12_000, test=2_000),
        config=config, budget=f"{last.step} steps", versions={"istbench": "0.1.0", "torch": "2.11.0"},
        host=HostRecord(name="made-up", cores=8, machine="x86_64"),
        result=Result(
            steps=last.step, samples=last.samples, train_s=last.train_s, wall_s=last.wall_s, final=last.metrics,
            bytes_sent_per_node=last.bytes_sent_per_node, bytes_received_per_node=last.bytes_received_per_node,
            peak_memory_bytes_per_node=500_000_000, train_loss=last.train_loss, weights_sha256="00" * 32,
            node_seconds=(),
        ),
    )  # fmt: skip


def written(results: Path, times: int) -> list[float]:
    """Seconds of the command that writes the page, from its start to its end."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        words = [sys.executable, "-m", "istbench", "report", str(results), "--no-pictures", "--format", "csv"]
        asked = [*words, "--html", str(results / "page.html")]
        subprocess.run(asked, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return seconds


def opened(page: Path, times: int) -> list[tuple[float, float]]:
    """Seconds from the request for the page until its answer, and until its first chart; none without a browser."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return []
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(times):
            tab = chromium.new_page(viewport={"width": 1200, "height": 900})
            started = time.perf_counter()
            tab.goto(page.as_uri())
            tab.locator(".answer:visible").first.wait_for()
            answered = time.perf_counter() - started
            tab.locator("figure:visible").first.scroll_into_view_if_needed()
            tab.locator("figure:visible svg").first.wait_for()
            seconds.append((answered, time.perf_counter() - started))
            tab.close()
        chromium.close()
    return seconds


def _spread(seconds: Sequence[float]) -> str:
    return spread(seconds, 2) if seconds else "not measured"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[3, 50, 200])
    parser.add_argument("--evaluations", type=int, default=50)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--no-browser", action="store_true", help="do not open the pages")
    arguments = parser.parse_args()
    print("| runs | page, MB | s to write it, median [min-max] | s to its answer | s to its first chart |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for count in arguments.runs:
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results"
            write_runs(results, count, arguments.evaluations)
            wrote = written(results, arguments.times)
            page = results / "page.html"
            shown = [] if arguments.no_browser else opened(page, arguments.times)
            spreads = [wrote, [answer for answer, _ in shown], [chart for _, chart in shown]]
            print(f"| {count} | {page.stat().st_size / 1e6:.2f} | {' | '.join(map(_spread, spreads))} |")


if __name__ == "__main__":
    main()
