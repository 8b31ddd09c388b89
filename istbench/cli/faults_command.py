"""`istbench faults`: a suite without faults and under one schedule of faults."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from istbench.api.cells import begin
from istbench.base.errors import UserError
from istbench.base.options.run import OF_MACHINE
from istbench.base.options.suite import read_suite
from istbench.cli import EXIT_FAILED, say
from istbench.cli.options import (
    PATH,
    SectionedCommand,
    again_option,
    explain_option,
    json_option,
    option,
    plugin_option,
    results_option,
    run_options,
    split_list,
    typed_options,
)
from istbench.launch.backends.here import Here
from istbench.studies.faults import small_disk

_TYPES = "kill,kill,host,damage,full,stop,down,slow"


@click.command("faults", cls=SectionedCommand)
@click.argument("suite", type=PATH, metavar="SUITE.toml")
@option(
    "--schedule",
    "Faults in the run time of a cell without faults, on average; poisson:20s for one every 20 train seconds "
    "of all cells; or a list such as kill@12s,stop:5s@20s, or a file with one.",
    default="poisson:1,2,4",
    metavar="poisson:RATE,...|LIST|FILE",
)
@option(
    "--types",
    "Faults of poisson, as often as each is named: kill a worker or a host, stop a worker, a link down or at "
    "a tenth, the disk full, the newest checkpoint damaged and a worker killed.",
    default=_TYPES,
    metavar="TYPE[:TIME],...",
)
@option("--schedule-seed", "Seed of moments, kinds and victims.", click.IntRange(0, 2**32), default=0)
@run_options("elastic", *OF_MACHINE)
@results_option("results/faults")
@plugin_option
@explain_option
@again_option
@json_option
def command(
    suite: Path,
    schedule: str,
    types: str,
    schedule_seed: int,
    out: Path,
    plugins: tuple[str, ...],
    explain: bool,
    again: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Measure the cost of faults: time to the target with faults over time without, by method.

    \b
    istbench faults configs/faults.toml --schedule kill@3s,stop:2s@5s
    istbench lab --nodes 3 --bandwidth 100mbit -- faults configs/faults.toml --schedule poisson:1,2,4

    Each cell of SUITE.toml runs without faults first, then once under each schedule. It restarts from its last
    checkpoint after a loss, with --elastic also on fewer nodes. All methods get the same schedule. The same command
    goes on with the cells that are left.

    Without a lab, only processes, checkpoints and the disk fail. In a lab, links fail too. full needs root.
    """
    from istbench.studies.faults.schedule import RESTARTS, parse_schedule, parse_types, types_here

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError("faults starts and kills its own workers; run it without torchrun")
    around = click.get_current_context().find_object(Here)  # in a lab
    backend = (around or Here()).restarting(RESTARTS, typed=False)
    asked = parse_types(split_list(types, "--types", f"such as {_TYPES}"), "--types")
    disk = not small_disk.why_not()
    here = types_here(asked, in_lab=backend.lab is not None, several=_several(backend), disk=disk)
    typed = typed_options()
    random = here if "types" not in typed else asked
    if not random:
        raise UserError("--types has no fault that is possible here; name kill, stop or damage")
    points = parse_schedule(schedule, random, schedule_seed, "--schedule")
    for point in points:
        _check_types({own.kind for own in (*point.types, *(own for own, _ in point.listed))}, backend)
    changed = {name: given[name] for name in ("elastic", *OF_MACHINE) if name in typed}
    requests = [
        msgspec.structs.replace(request, **changed)
        for part in read_suite(suite)
        for request in part.requests(plugins)
    ]
    begin([backend.fit(request) for request in requests], backend, out)
    if backend.lab is None:
        say("without a lab only processes and checkpoints fail; `istbench lab ... -- faults` also has links (root)")
    from istbench.api.progress import Display
    from istbench.report.output.terminal import print_tables
    from istbench.report.tables.measured_faults import faults_answer, faults_record, faults_table
    from istbench.studies.faults.study import FaultStudy

    with Display() as display:
        study = FaultStudy(backend, out, display, again=again)
        found = study.run(requests, points)
    for problem in study.problems:
        say(problem)
    if as_json:
        click.echo(json.dumps(faults_record(found, study.problems), allow_nan=False))
    else:
        print_tables([faults_table(found)], sys.stdout, answers=[faults_answer(found)], explain=explain)
    return EXIT_FAILED if study.problems else 0


def _several(backend: Here) -> bool:
    return backend.lab is not None and backend.lab.host_nodes > 1


def _check_types(kinds: set[str], backend: Here) -> None:
    """Refuse faults that this machine cannot make."""
    links = sorted(kinds & {"down", "slow"})
    if links and backend.lab is None:
        raise UserError(
            f"{links[0]} needs a shaped link: run `istbench lab --nodes N -- faults ...` as root, or leave it out"
        )
    if "host" in kinds and not _several(backend):
        raise UserError("host needs a lab with --host-nodes of 2 or more; use kill for a host of one node")
    if "full" in kinds and (reason := small_disk.why_not()):
        raise UserError(f"full: {reason}; leave it out")
