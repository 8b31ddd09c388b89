"""Cells that are done and here, found before anything that trains is started on their hosts."""

from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from istbench.config.run import RUN_OPTIONS, RunConfig, RunRequest
from istbench.door import convert
from istbench.errors import UserError
from istbench.hosts.connection import Lost, Refused, connected, each
from istbench.hosts.group import Asked, survey
from istbench.hosts.names import Host
from istbench.processes.launcher import Signals
from istbench.results.store import RunDirectory

# Data that is still to be made ready takes longer: the run does that, and shows how far it is.
_NAMES_WITHIN_S, _ANSWERS_WITHIN_S = 60.0, 90.0
# A header has the device that a host chose, and the interval as the steps bound it.
_CHOSEN_THERE = {"device": "auto"}
_BOUNDED = "eval_every"


@dataclass(frozen=True, kw_only=True)
class AskedCell:
    """A cell that is asked for: `words` are those of `request`, and `hosts` are those that it would run on."""

    request: RunRequest
    words: tuple[str, ...]
    hosts: tuple[Host, ...]


def finished(
    cells: Sequence[AskedCell],
    paths: Sequence[str],
    out: Path,
    pythons: Sequence[str],
    config: Path | None,
    by: str,
) -> list[RunDirectory | None]:
    """The run directories, here, of those `cells` that are done; None for others, and where it cannot be found out.

    Nobody is asked where no run under `out` could be one of them. Else the first host resolves the cells' names as
    a run would: by its own code, plug-ins and data, and by the threads that all hosts have cores for.

    Args:
        paths: those that the words name. by: the module that finds names.

    Raises:
        Unfit: naming what is wrong with which host. KeyboardInterrupt: after a signal.
    """
    done = [runs_alike(cell.request, out) for cell in cells]
    asked = [number for number, names in enumerate(done) if names]
    found: list[RunDirectory | None] = [None] * len(cells)
    if not asked:
        return found
    names = _names([cells[number] for number in asked], paths, out, pythons, config, by)
    for number, name in zip(asked, names, strict=False):
        if name in done[number]:
            found[number] = RunDirectory.of(out, name)
    return found


def runs_alike(request: RunRequest, out: Path) -> set[str]:
    """Names of the runs under `out` that are done, and may be of `request` by the options that a header repeats."""
    start = f"{request.workload}-{request.method}-n{request.nodes}-s{request.seed}-"
    found = set()
    for path in (out / "runs").glob(f"{escape(start)}*"):
        try:
            header = RunDirectory(path).header()
        except UserError:
            continue
        if header.status == "done" and header.cell == path.name and _alike(request, header.config):
            found.add(path.name)
    return found


def _alike(request: RunRequest, config: RunConfig) -> bool:
    given = {option.name: getattr(request, option.name) for option in RUN_OPTIONS if option.defines_cell}
    return all(
        name == _BOUNDED or value in (None, _CHOSEN_THERE.get(name)) or value == getattr(config, name, value)
        for name, value in given.items()
    )


def _names(
    cells: Sequence[AskedCell],
    paths: Sequence[str],
    out: Path,
    pythons: Sequence[str],
    config: Path | None,
    by: str,
) -> list[str | None]:
    """The names of `cells`, none where hosts do not tell."""
    hosts = max((cell.hosts for cell in cells), key=len)
    with Signals() as signals, connected(hosts, pythons, config) as (connections, _), signals.raised():
        survey(connections, Asked(paths=tuple(paths), out=out, marks=False))
        futures = {host.name: host.ask("usable_cores") for host in connections}
        answers, problems = each(connections, lambda host: host.answer(futures[host.name]))
        if problems:
            return []
        cores = {host.name: int(answer) for host, answer in zip(connections, answers, strict=True)}
        questions = [
            {
                "words": cell.words,
                "nodes": cell.request.nodes,
                "here": cell.hosts[0].slots,
                "threads": min(max(1, cores[host.name] // host.slots) for host in cell.hosts),
            }
            for cell in cells
        ]
        first = connections[0]
        try:
            future = first.ask("name_cells", cells=questions, by=by, within_s=_NAMES_WITHIN_S)
            names = first.answer(future, _ANSWERS_WITHIN_S)
            return convert(names, list[str | None], lambda _: f"{first.name}: names of cells")
        except (Lost, Refused, UserError):
            return []
