"""One cell on hosts that starts again after a loss, on spare hosts where some are gone."""

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence

from istbench.base.units import counted
from istbench.launch.cells.restarts import Restarts
from istbench.launch.hosts.group import Say, Unfit, Unlinked
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.run import HostsRun, RunLost, run_on_hosts
from istbench.launch.processes.failures import cause_in
from istbench.results.store import RunDirectory

_WAITS_S = 10.0  # for a link, or a host without a spare, that may be back then


def run_with_restarts(run: HostsRun, say: Say, started: Callable[[str], None] = lambda _cell: None) -> RunDirectory:
    """As `run_on_hosts`, again after a loss, as often as `run` has restarts.

    A spare takes the place of each host that cannot be reached, also before the run starts first. If the first host
    is gone, the spare gets the checkpoint that was copied here. Without a spare, an elastic run that has begun goes
    on with the other hosts; it grows when the lost ones can be reached again. Those come last: the first host has
    the newest checkpoint.

    Raises:
        As `run_on_hosts`.
    """
    left, step, began = Restarts(run.restarts), 0, run.reason is not None
    while True:
        try:
            return run_on_hosts(run, say, started)
        except Unfit as unfit:
            found = with_spares(run.hosts, unfit.gone, run.spares)
            if found is not None:
                for gone, spare in zip(run.hosts, found[0], strict=True):
                    if gone is not spare:
                        say(f"{gone.name} cannot be reached: {spare.name} takes its place")
                run = dataclasses.replace(run, hosts=found[0], spares=found[1])
                continue
            rest = run.without(unfit.gone) if began else None
            if rest is not None:
                names = ", ".join(sorted(unfit.gone))
                say(f"{names} cannot be reached: the run goes on with {nodes_of(rest.hosts)}")
                run = rest
                continue
            may_be_back = bool(unfit.gone) or isinstance(unfit, Unlinked)
            if not began or not may_be_back or not left.allow(step):
                raise
            say(f"{unfit.problems[0]}; trying again")
            time.sleep(_WAITS_S)
        except RunLost as failure:
            step, began = failure.step, True
            if failure.back:
                run = run.with_back(failure.back)
                say(f"{run.reason.cause if run.reason else ''}: the run goes on with {nodes_of(run.hosts)}")
                continue
            if not left.allow(step):
                raise left.ended(failure) from None
            say(f"{cause_in(failure.what)}; the run starts again from its last checkpoint")
            again = run.again and not failure.began
            run = dataclasses.replace(run, reason=failure.loss, again=again)


def nodes_of(hosts: Sequence[Host]) -> str:
    """The number of nodes on `hosts`, in words."""
    return counted(sum(host.slots for host in hosts), "node")


def with_spares(
    hosts: Sequence[Host], gone: Collection[str], spares: Sequence[Host]
) -> tuple[tuple[Host, ...], tuple[Host, ...]] | None:
    """The `hosts` with spares in place of those that are `gone`, and the spares that are left.

    None if none of them is gone, or if a host that is gone has as many slots as no spare.
    """
    if not any(host.name in gone for host in hosts):
        return None
    found, left = list[Host](), [spare for spare in spares if spare.name not in gone]
    for host in hosts:
        if host.name not in gone:
            found.append(host)
            continue
        spare = next((spare for spare in left if spare.slots >= host.slots), None)
        if spare is None:
            return None
        left.remove(spare)
        found.append(dataclasses.replace(spare, slots=host.slots))
    return tuple(found), tuple(left)
