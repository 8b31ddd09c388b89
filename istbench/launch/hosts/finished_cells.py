"""Find finished cells in the local results directory before torchrun starts on hosts."""

from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

import msgspec

from istbench.base.decode import encode_own
from istbench.base.errors import UserError
from istbench.base.options.run import RUN_OPTIONS, RunConfig, RunRequest, nodes_part
from istbench.launch.hosts.connection import Connection, Lost, Refused, connected, told
from istbench.launch.hosts.group import Say, Unfit, survey
from istbench.launch.hosts.push import push
from istbench.launch.hosts.remote_programs import program
from istbench.launch.hosts.run import HostsRun, paths_of
from istbench.results.header import CellName
from istbench.results.store import RunDirectory

# Data that is not prepared yet takes longer: the run prepares it and shows its progress.
_NAMES_WITHIN_S, _ANSWERS_WITHIN_S = 60.0, 90.0
# A header has the device that the host chose, and an interval bounded by the steps.
_CHOSEN_THERE = {"device": "auto"}
_BOUNDED = "eval_every"
_Names = list[CellName | None]


def finished(runs: Sequence[HostsRun], say: Say) -> list[RunDirectory | None]:
    """The local run directories of those cells of `runs` that are done; None for others, and if hosts cannot tell.

    Asks no host if no local run could be one of the cells. Otherwise the first host computes their names, which
    depend on the data, the plug-ins and the device there. A cell with `--save` is done if its weights are here too;
    one that trains again is not done.

    Raises:
        KeyboardInterrupt: after a signal.
    """
    done = [set[str]() if run.again else runs_alike(run.request, run.out) for run in runs]
    possible = [number for number, names in enumerate(done) if names]
    found: list[RunDirectory | None] = [None] * len(runs)
    if not possible:
        return found
    try:
        names = _names([runs[number] for number in possible], say)
    except (Unfit, Lost, Refused):  # the run that follows reports it
        return found
    for number, name in zip(possible, names, strict=False):
        run = runs[number]
        if name in done[number] and _saved(run.request, RunDirectory.of(run.out, name)):
            found[number] = RunDirectory.of(run.out, name)
    return found


def _saved(request: RunRequest, run: RunDirectory) -> bool:
    """Whether the weights of `run` are where `request` wants them."""
    if request.save is None:
        return True
    from istbench.node.weights_file import has_weights

    return has_weights(request.save, run.header().result)


def runs_alike(request: RunRequest, out: Path, *, done: bool = True) -> set[str]:
    """Names of the runs under `out`, done or not, that may be of `request` by the options that a header repeats."""
    start = f"{request.workload}-{request.method}-{nodes_part(request)}-s{request.seed}-"
    found = set()
    for path in (out / "runs").glob(f"{escape(start)}*"):
        try:
            header = RunDirectory(path).header()
        except UserError:
            continue
        if (header.status == "done") == done and header.cell == path.name and _alike(request, header.config):
            found.add(path.name)
    return found


def _alike(request: RunRequest, config: RunConfig) -> bool:
    given = {option.name: getattr(request, option.name) for option in RUN_OPTIONS if option.defines_cell}
    return all(
        name == _BOUNDED or value in (None, _CHOSEN_THERE.get(name)) or value == getattr(config, name, value)
        for name, value in given.items()
    )


def _names(runs: Sequence[HostsRun], say: Say) -> _Names:
    """The names of the cells of `runs`, none if hosts do not tell."""
    run = runs[0]
    with connected(run.hosts[:1], run.pythons, run.config) as ((first,), _):
        survey([first], run.out, paths_of(runs), marks=False)
        there = push([first], paths_of(runs), say)[first.name]
        names = name_cells_there(first, runs, there)
        # A detached cell goes on, or waits to be copied, whatever an earlier run left here.
        waiting = [told(first.name, first.do("has_detached", key=run.key), bool) for run in runs]
        return [None if one else name for one, name in zip(waiting, names, strict=False)]


def name_cells_there(first: Connection, runs: Sequence[HostsRun], there: Mapping[str, str]) -> _Names:
    """The names of the cells of `runs` on host `first`, which has the paths `there`; none if it cannot tell."""
    cells = [msgspec.to_builtins(run.request_there(there, None), enc_hook=encode_own) for run in runs]
    try:
        asked = program("names", limit_s=_NAMES_WITHIN_S, typed=cells)
        return told(first.name, first.do("run_programs", _ANSWERS_WITHIN_S, **asked), tuple[_Names])[0]
    except (Lost, Refused, UserError):
        return []
