"""`istbench compare`: many cells, one after another, ending in the table and the pictures."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.cli import EXIT_FAILED
from istbench.cli.hosts_options import (
    detach_there,
    finished_there,
    hosts_options,
    install_there,
    run_there,
    stop_there,
)
from istbench.cli.options import (
    PathType,
    baseline_option,
    cell_options,
    cluster_option,
    in_lab,
    lab_and_nodes,
    out_option,
    plugin_option,
    request_fields,
    split_list,
    typed_options,
)
from istbench.cluster.profile import ClusterProfile
from istbench.config.defaults import BASELINE
from istbench.config.run import RUN_OPTIONS, RunRequest
from istbench.config.suite import MOST_CELLS, Suite, check_cells, read_suite
from istbench.errors import RunFailed, UserError, shown, unknown_name
from istbench.hosts.names import Host, first_of
from istbench.lab.network import ShapedNetwork
from istbench.registry import check_name, load_method
from istbench.torchrun.world import this_world

if TYPE_CHECKING:
    from istbench.backends.slurm import SlurmOptions

# Where the data lies and what computes: the same suite is run on machines that differ in it.
_OF_THE_MACHINE = ("data", "device", "threads", "timeout_s", "checkpoint_every_s", "anyway")


@click.command("compare")
@click.argument("suite", required=False, type=PathType(), metavar="[SUITE.toml]")
@click.option("--methods", default="ist,local_sgd,ddp", show_default=True, help="Methods, separated by commas.")
@click.option("--workload", default="speech", show_default=True, help="What to train.")
@click.option("--nodes", default="2", show_default=True, help="Numbers of nodes, separated by commas.")
@click.option(
    "--seeds", type=click.IntRange(1, MOST_CELLS), default=1, show_default=True, help="Seeds 0 to this less one."
)
@cell_options
@out_option
@plugin_option
@cluster_option
@baseline_option
@hosts_options("Train every cell on these hosts, over ssh, a node each; one with fewer nodes on the first of them.")
@click.option("--again", is_flag=True, help="Run cells anew though they are done.")
@click.option(
    "--slurm",
    multiple=True,
    metavar="NAME=VALUE",
    help="Each cell as a job of Slurm's: partition=gpu, minutes=60, ... May be repeated; see docs/slurm.md.",
)
def command(
    suite: Path | None,
    out: Path,
    plugins: tuple[str, ...],
    cluster: ClusterProfile,
    baseline: str,
    hosts: tuple[Host, ...] | None,
    hosts_python: str | None,
    ssh_config: Path | None,
    install: bool,
    detach: bool,
    stop: bool,
    again: bool,
    slurm: tuple[str, ...],
    **given: Any,
) -> int:
    """Train many cells and compare their time to accuracy.

    Cells come from SUITE.toml, or from --methods x --nodes x --seeds over one workload. Beside a suite, --data,
    --device, --threads, --timeout, --checkpoint-every and --anyway hold for all of its cells.

    Finished cells are not run twice, unfinished ones go on where they stopped, and a cell that fails does not stop
    the others.
    """
    if this_world() is not None:
        raise UserError(
            "torchrun runs one cell: use istbench run under it once a cell, or istbench compare --hosts"
        )
    lab, given["nodes"] = lab_and_nodes(given["nodes"])
    jobs = _slurm_options(slurm, lab)
    if hosts is not None:
        if lab is not None or jobs is not None:
            raise UserError("--hosts says where cells are run: leave it out, or the lab, or --slurm")
        if "nodes" not in typed_options(click.get_current_context()):
            given["nodes"] = str(sum(host.slots for host in hosts))
    requests = [in_lab(request, lab) for request in _requests(suite, plugins, given)]
    for request in requests:
        check_name("methods", request.method, plugins)
        check_name("workloads", request.workload, plugins)
    _check_baseline(baseline, requests)
    if hosts is not None and install:
        install_there(hosts, hosts_python, ssh_config)
        hosts_python = None
    if hosts is not None and stop:
        stop_there(requests, hosts, hosts_python, ssh_config, out)
    if hosts is not None and detach:
        chosen = [(request, first_of(hosts, request.nodes)) for request in requests]
        done = [None] * len(chosen) if again else finished_there(chosen, hosts_python, ssh_config, out)
        left = [cell for cell, run in zip(chosen, done, strict=True) if run is None]
        if left:
            detach_there(left, hosts_python, ssh_config, out, again)
            return 0
    from istbench.processes.local import preload

    if jobs is None and hosts is None:
        preload(requests)
    from istbench.cli.progress import Display
    from istbench.cli.replaying import replaying

    with Display() as display:
        if hosts is not None:
            names, failures = _run_on_hosts(requests, out, again, hosts, hosts_python, ssh_config, display)
        elif jobs is not None:
            names, failures = _run_as_jobs(requests, out, again, jobs, display)
        else:
            names, failures = _run_all(requests, out, again, lab, display)
        display.note("\n".join(failures))
    from istbench.cli.show import show_report
    from istbench.report.report import build_report

    with replaying():
        report = build_report(out, cells=names, cluster=cluster, baseline=baseline)
    show_report(report, out)
    for failure in failures:
        click.echo(f"istbench: {failure}", err=True)
    return EXIT_FAILED if failures else 0


def _requests(suite: Path | None, plugins: tuple[str, ...], given: dict[str, Any]) -> list[RunRequest]:
    """The cells asked for, each method with those of the given options that it has."""
    context = click.get_current_context()
    if suite is not None:
        flags = typed_options(context)
        typed = {name: given[name] for name in given if name in flags}
        clashing = [flags[name] for name in typed if name not in _OF_THE_MACHINE]
        if clashing:
            raise UserError(f"a suite says what to run: leave out {', '.join(clashing)}, or the suite")
        requests = [request for part in read_suite(suite) for request in part.requests(plugins)]
        return [dataclasses.replace(request, **typed) for request in requests]
    methods = split_list(given.pop("methods"), "--methods", "see `istbench list methods`")
    workload = given.pop("workload")
    nodes, seeds = _numbers(given.pop("nodes"), "--nodes"), given.pop("seeds")
    check_cells(len(nodes) * seeds * len(methods), "the command")
    fields = request_fields(given)
    shared = fields.pop("method_options")
    asked = Suite(
        workload=workload,
        methods=tuple((method, _own_options(method, methods, shared, plugins)) for method in methods),
        nodes=nodes,
        seeds=tuple(range(seeds)),
        workload_options=fields.pop("workload_options"),
        run=fields,
    )
    return asked.requests(plugins)


def _check_baseline(baseline: str, requests: list[RunRequest]) -> None:
    """Refuse a `baseline` that no cell of `requests` can be, before anything is trained."""
    if baseline == BASELINE:
        return
    from istbench.report.baseline import same_value
    from istbench.report.groups import split_label

    method, options = split_label(baseline)
    cells = [request for request in requests if request.method == method]
    if not cells:
        raise unknown_name("--baseline", baseline, {request.method for request in requests})
    for name, text in options.items():
        known = _option_names(method, cells[0].plugins) | {option.name for option in RUN_OPTIONS}
        if name not in known:
            raise unknown_name(f"option of {method} in --baseline", name, known)
        # An option that a cell does not name has the workload's default, which is not known yet.
        cells = [cell for cell in cells if same_value(_given(cell, name, text), text)]
        if not cells:
            raise UserError(
                f"--baseline {shown(baseline)}: no cell of {method} has {name}={text}; "
                f"train one with it, or name {method} alone"
            )


def _given(request: RunRequest, name: str, otherwise: str) -> Any:
    found = request.method_options.get(name, getattr(request, name, otherwise))
    return otherwise if found is None else found


def _own_options(
    method: str, methods: list[str], shared: dict[str, str], plugins: tuple[str, ...]
) -> dict[str, str]:
    """Those of the `shared` options that `method` has; each must belong to one of `methods` at least."""
    if not shared:
        return {}
    known = {name: _option_names(name, plugins) for name in methods}
    for option in shared:
        if not any(option in names for names in known.values()):
            raise unknown_name(f"option of {', '.join(methods)}", option, set().union(*known.values()))
    return {option: value for option, value in shared.items() if option in known[method]}


def _option_names(method: str, plugins: tuple[str, ...]) -> set[str]:
    return {field.name for field in dataclasses.fields(load_method(method, plugins).Options)}


def _run_all(
    requests: list[RunRequest], out: Path, again: bool, lab: ShapedNetwork | None, display: Any
) -> tuple[list[str], list[str]]:
    """Run every cell; returns the names of all cells and a line for each that failed."""
    from istbench.cells.execute import execute, run_directory
    from istbench.cells.resolve import prepare_cell
    from istbench.processes.local import LocalLauncher
    from istbench.processes.place import ThisMachine

    launcher = LocalLauncher(place=lab or ThisMachine())
    cells, failures, notes = [], [], set()
    # All are prepared first, so that a wrong name in the last one costs no hour of training.
    for request in requests:
        cells.append(prepare_cell(request, display.preparing))
        notes.add(cells[-1].header.data_source.note)
    for note in sorted(notes):
        display.note(note)
    for number, cell in enumerate(cells, start=1):
        run = run_directory(out, cell.name)
        try:
            with display.training(cell.header, run) as scratch:
                fresh = execute(cell, run, scratch, launcher, again=again)
            display.note(f"[{number}/{len(cells)}] {cell.name}: {'done' if fresh else 'done before'}")
        except (RunFailed, UserError) as error:
            failures.append(f"{cell.name}: {error}")
            display.note(f"[{number}/{len(cells)}] {cell.name}: failed")
    return [cell.name for cell in cells], failures


def _slurm_options(pairs: tuple[str, ...], lab: ShapedNetwork | None) -> "SlurmOptions | None":
    if not pairs:
        return None
    if lab is not None:
        raise UserError("a lab is a network of this machine: leave out --slurm, or the lab")
    from istbench.backends.slurm import SlurmOptions

    return SlurmOptions.parse(pairs)


def _run_as_jobs(
    requests: list[RunRequest], out: Path, again: bool, options: "SlurmOptions", display: Any
) -> tuple[list[str], list[str]]:
    """Run every cell as a job; returns as `_run_all`."""
    from istbench.backends.slurm import run_as_jobs
    from istbench.cells.resolve import prepare_cell

    cells = [prepare_cell(request, display.preparing) for request in requests]
    for note in sorted({cell.header.data_source.note for cell in cells}):
        display.note(note)
    names = [cell.name for cell in cells]
    return names, run_as_jobs(requests, names, out, options, display.note, again=again)


def _run_on_hosts(
    requests: list[RunRequest],
    out: Path,
    again: bool,
    hosts: tuple[Host, ...],
    python: str | None,
    config: Path | None,
    display: Any,
) -> tuple[list[str], list[str]]:
    """Run every cell on as many of `hosts` as it has nodes; returns as `_run_all`."""
    chosen = [first_of(hosts, request.nodes) for request in requests]
    asked = list(zip(requests, chosen, strict=True))
    before = [None] * len(asked) if again else finished_there(asked, python, config, out)
    names, failures = [], []
    for number, ((request, own), done) in enumerate(zip(asked, before, strict=True), start=1):
        if done is not None:
            names.append(done.path.name)
            display.note(f"[{number}/{len(requests)}] {done.path.name}: done before")
            continue
        try:
            run = run_there(own, python, config, request, out, again)
        except (RunFailed, UserError) as error:
            cell = f"{request.workload} {request.method} on {request.nodes} nodes, seed {request.seed}"
            failures.append(f"{cell}: {error}")
            display.note(f"[{number}/{len(requests)}] {cell}: failed")
        else:
            names.append(run.path.name)
            display.note(f"[{number}/{len(requests)}] {run.path.name}: done")
    return names, failures


def _numbers(text: str, flag: str) -> tuple[int, ...]:
    listed = split_list(text, flag, "such as 2,4,8")
    (option,) = (option for option in RUN_OPTIONS if option.name == "nodes")
    return tuple(option.decode(number, flag, text=True) for number in listed)
