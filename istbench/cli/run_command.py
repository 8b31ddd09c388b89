"""`istbench run`: one cell."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from istbench.cli import EXIT_TARGET_MISSED
from istbench.cli.hosts_options import (
    detach_there,
    finished_there,
    hosts_options,
    install_there,
    run_there,
    say,
    stop_there,
)
from istbench.cli.options import (
    build_request,
    cell_options,
    cluster_option,
    lab_and_nodes,
    out_option,
    plugin_option,
    run_options,
    typed_options,
)
from istbench.cluster.clock import dollars
from istbench.cluster.profile import ClusterProfile
from istbench.config.data_source import DataSource
from istbench.config.run import RunRequest
from istbench.errors import UserError
from istbench.hosts import relay
from istbench.hosts.names import Host
from istbench.lab.network import ShapedNetwork
from istbench.registry import check_name
from istbench.results.events import Note
from istbench.results.header import Result
from istbench.results.load import Run
from istbench.results.store import RunDirectory
from istbench.torchrun.world import World, this_world


@click.command("run")
@click.option("--method", required=True, help="Training method; see `istbench list methods`.")
@click.option("--workload", required=True, help="What to train; see `istbench list workloads`.")
@run_options("nodes", "seed", "save")
@cell_options
@out_option
@plugin_option
@cluster_option
@hosts_options("Train on these hosts, over ssh, a node each; FILE has one a line, with slots=N for several.")
@click.option("--again", is_flag=True, help="Run the cell anew though it is done.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def command(
    nodes: int,
    out: Path,
    cluster: ClusterProfile,
    hosts: tuple[Host, ...] | None,
    hosts_python: str | None,
    ssh_config: Path | None,
    install: bool,
    detach: bool,
    stop: bool,
    again: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Train one cell: a workload by one method on so many nodes.

    The same command again goes on where an interrupted run stopped, and shows a finished one. Under torchrun, its
    processes are the nodes.
    """
    world, lab, nodes = _world_and_lab(nodes, hosts)
    request = build_request(nodes=nodes, lab=lab, **given)
    check_name("methods", request.method, request.plugins)
    check_name("workloads", request.workload, request.plugins)
    if hosts is not None:
        if install:
            install_there(hosts, hosts_python, ssh_config)
            hosts_python = None
        if stop:
            stop_there([request], hosts, hosts_python, ssh_config, out)
        run = _on_hosts(hosts, hosts_python, ssh_config, request, out, again, detach)
        if run is None:
            return 0
        return _show(run, request, cluster, as_json)
    # Workers need torch, and so does this process: both start importing it now, side by side.
    from istbench.processes.local import LocalLauncher, preload

    preload([request])
    if world is not None and world.rank > 0:
        from istbench.torchrun.workers import follow

        return follow(world, request, out)
    from istbench.cells.execute import execute, run_directory
    from istbench.cells.resolve import prepare_cell
    from istbench.cli.progress import Display
    from istbench.processes.launcher import Launcher
    from istbench.processes.place import ThisMachine
    from istbench.torchrun.meeting import meeting_of

    with Display() as display:
        cell = prepare_cell(request, display.preparing, here=None if world is None else world.local_size)
        display.note(cell.header.data_source.note)
        launcher: Launcher = LocalLauncher(place=lab or ThisMachine())
        if world is not None:
            from istbench.torchrun.workers import lead

            cell, launcher, how = lead(world, cell)
            display.note(how)
            relay.await_go(cell.name)
        run = run_directory(out, cell.name)
        with display.training(cell.header, run) as scratch:
            fresh = execute(cell, run, scratch, launcher, again=again)
        if world is not None:
            meeting_of(world).end(0)
        if not fresh:
            _require_saved(request.save, cell.name, run.header().result)
            display.note(_done_already(cell.name))
        for note in _notes(run):
            display.note(note)
    return 0 if relay.folder() else _show(run, request, cluster, as_json, cell.header.data_source)


def _on_hosts(
    hosts: tuple[Host, ...],
    python: str | None,
    config: Path | None,
    request: RunRequest,
    out: Path,
    again: bool,
    detach: bool,
) -> RunDirectory | None:
    """Run `request` on `hosts`; returns the run directory, here, None where it goes on there."""
    if not again:
        (done,) = finished_there([(request, hosts)], python, config, out)
        if done is not None:
            for note in [done.header().data_source.note, _done_already(done.path.name), *_notes(done)]:
                say(note)
            return done
    if detach:
        detach_there([(request, hosts)], python, config, out, again)
        return None
    return run_there(hosts, python, config, request, out, again)


def _done_already(cell: str) -> str:
    return f"{cell} is done already; --again runs it anew"


def _notes(run: RunDirectory) -> list[str]:
    """What is to be known of a finished run beside its summary."""
    from istbench.results.hosts import changes

    header, events = run.header(), list(run.events())
    notes = dict.fromkeys(event.message for event in events if isinstance(event, Note))
    parts = changes(header, events)
    return [f"{header.method}: {note}" for note in notes] + [
        f"the seconds are of several parts, {change}" for change in parts
    ]


def _show(
    run: RunDirectory,
    request: RunRequest,
    cluster: ClusterProfile,
    as_json: bool,
    source: DataSource | None = None,
) -> int:
    """Print what came of `run`; returns the exit status.

    source: the data of this command, where known. A finished run may have had the same data from another directory.
    """
    from istbench.cli.replaying import replaying
    from istbench.report.tables.summary import run_summary
    from istbench.results.load import load_run

    finished = load_run(run)
    if source is not None:
        header = msgspec.structs.replace(finished.header, data_source=source)
        finished = dataclasses.replace(finished, header=header)
    with replaying():
        replayed, problem = _replay(finished, cluster)
    if as_json:
        click.echo(json.dumps(_as_json(finished, cluster, replayed), allow_nan=False))
    else:
        from istbench.report.output.terminal import print_table

        print_table(run_summary(finished, replayed), sys.stdout)
    if problem:
        click.echo(f"no {cluster.name} seconds: {problem}", err=True)
    if request.target is None or finished.reached(request.target):
        return 0
    click.echo(
        f"istbench: target {request.target:g} not reached: best {finished.header.metric} {_best(finished)}",
        err=True,
    )
    return EXIT_TARGET_MISSED


def _world_and_lab(nodes: int, hosts: tuple[Host, ...] | None) -> tuple[World | None, ShapedNetwork | None, int]:
    """What torchrun started, the lab, and the nodes: as many as these or the hosts have, unless they were typed."""
    typed = "nodes" in typed_options(click.get_current_context())
    world = this_world()
    lab, nodes = lab_and_nodes(nodes)
    if world is not None and lab is not None:
        raise UserError("a lab starts its own nodes: leave out torchrun, or the lab")
    if hosts is not None:
        if world is not None or lab is not None:
            raise UserError("--hosts starts its own nodes: leave out torchrun, the lab, or --hosts")
        there = sum(host.slots for host in hosts)
        if typed and nodes != there:
            raise UserError(f"--nodes {nodes}, and --hosts has {there}, one a process; leave out --nodes")
        return None, None, there
    return world, lab, nodes if world is None else world.nodes(nodes if typed else None)


def _require_saved(directory: Path | None, cell: str, result: Result | None) -> None:
    """Refuse a finished cell whose weights are to be saved, unless they are: they are not kept."""
    from istbench.node.weights_file import saved_digest

    if directory is not None and (result is None or saved_digest(directory) != result.weights_sha256):
        raise UserError(
            f"{cell} is done already, and its weights are not in {directory}; --again trains it anew and saves them"
        )


def _best(run: Run) -> str:
    best = run.curve.best()
    return "never a number" if best is None else f"{best:.4f}"


def _replay(run: Run, cluster: ClusterProfile) -> tuple[Run | None, str]:
    """The run on the clock of `cluster`, or None and why not."""
    from istbench.results.on_cluster import runs_on_clusters

    (replayed,), problems = runs_on_clusters([run], [cluster])
    return (None, problems[0]) if problems else (replayed[0], "")


def _as_json(run: Run, cluster: ClusterProfile, replayed: Run | None) -> dict[str, Any]:
    """What `--json` prints: what was run, what came of it, and null for what never happened."""
    header = run.header
    targets = []
    for level in run.targets:
        there, there_on_cluster = run.reached(level), replayed.reached(level) if replayed else None
        targets.append(
            {
                "level": level,
                "step": there.step if there else None,
                "train_s": there.seconds if there else None,
                "before_first_evaluation": there.from_start if there else None,
                "cluster_s": there_on_cluster.seconds if there_on_cluster else None,
            }
        )
    seconds = replayed.curve.seconds[-1] if replayed else None
    said = ("cell", "status", "method", "workload", "nodes", "seed", "batch_size", "data", "timing_rule")
    return {
        **{name: getattr(header, name) for name in said},
        "run_dir": str(run.directory.path),
        "saved": header.config.save,
        "method_options": header.config.method_options,
        "workload_options": header.config.workload_options,
        **{name: getattr(header.config, name) for name in ("amp", "channels_last", "compile")},
        "data_seen": header.data_source.seen,
        "data_fingerprint": header.data_source.fingerprint,
        "clock": "train_s",
        "cluster": {
            "name": cluster.name,
            "seconds": seconds,
            "dollars": dollars(cluster, header.nodes, seconds) if seconds is not None else None,
            "doubt": replayed.cluster.doubt or None if replayed and replayed.cluster else None,
        },
        "targets": targets,
        **msgspec.to_builtins(header.result),
    }
