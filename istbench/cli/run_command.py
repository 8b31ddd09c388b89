"""`istbench run`: one cell."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from istbench.cli import EXIT_TARGET_MISSED
from istbench.cli.options import build_request, cell_options, out_option, plugin_option
from istbench.registry import check_name
from istbench.results.load import Run


@click.command("run")
@click.option("--method", required=True, help="Training method; see `istbench list methods`.")
@click.option("--workload", required=True, help="What to train; see `istbench list workloads`.")
@click.option("--nodes", type=int, default=1, show_default=True, help="Worker processes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights, data order and partitions.")
@cell_options
@out_option
@plugin_option
@click.option("--again", is_flag=True, help="Run the cell anew though it is done.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def command(out: Path, again: bool, as_json: bool, **given: Any) -> int:
    """Train one cell: a workload by one method on so many nodes.

    The same command again goes on where an interrupted run stopped, and shows a finished one.
    """
    request = build_request(**given)
    check_name("methods", request.method, request.plugins)
    check_name("workloads", request.workload, request.plugins)
    # Workers need torch, and so does this process: both start importing it now, side by side.
    from istbench.launch import local

    local.preload()
    from istbench.cli.progress import Display
    from istbench.launch.execute import execute, run_directory
    from istbench.launch.prepare import prepare_cell
    from istbench.report.tables import run_summary
    from istbench.results.load import load_run

    with Display() as display:
        cell = prepare_cell(request, display.preparing)
        display.note(cell.header["data_source"]["note"])
        run = run_directory(out, cell.name)
        with display.training(cell.header, run) as scratch:
            fresh = execute(cell, run, scratch, again=again)
        if not fresh:
            display.note(f"{cell.name} is done already; --again runs it anew")
        for note in dict.fromkeys(event["message"] for event in run.events() if event["event"] == "note"):
            display.note(f"{request.method}: {note}")
    finished = load_run(run)
    if as_json:
        click.echo(json.dumps(_as_json(finished, run.path), allow_nan=False))
    else:
        from istbench.report.render import print_table

        print_table(run_summary(finished), sys.stdout)
    if request.target is None or finished.reached(request.target):
        return 0
    click.echo(
        f"istbench: target {request.target:g} not reached: best {cell.header['metric']} {finished.best():.4f}",
        err=True,
    )
    return EXIT_TARGET_MISSED


def _as_json(run: Run, run_dir: Path) -> dict[str, Any]:
    """What `--json` prints: what was run, what came of it, and null for what never happened."""
    header = run.header
    targets = []
    for level in run.targets:
        there = run.reached(level)
        targets.append(
            {
                "level": level,
                "step": there.step if there else None,
                "train_s": there.seconds if there else None,
            }
        )
    said = ("cell", "status", "method", "workload", "nodes", "seed", "batch_size", "data", "timing_rule")
    return {
        **{name: header[name] for name in said},
        "run_dir": str(run_dir),
        "method_options": header["config"]["method_options"],
        "workload_options": header["config"]["workload_options"],
        "data_fingerprint": header["data_source"]["fingerprint"],
        "clock": "train_s",
        "targets": targets,
        **header["result"],
    }
