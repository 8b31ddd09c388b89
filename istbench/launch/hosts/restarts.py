"""One cell on hosts that starts again after a loss, on spare hosts where some are gone."""

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence

from istbench.base.units import counted, period_text
from istbench.launch.cells.restarts import Restarts
from istbench.launch.hosts.group import Say, Unfit, Unlinked
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.run import HostsRun, RunLost, run_on_hosts
from istbench.launch.processes.failures import cause_in
from istbench.launch.processes.launcher import Signals
from istbench.results.events import Loss, Return
from istbench.results.store import RunDirectory

_AWAY_S, _POLL_S = 600.0, 10.0  # how long a run waits for a host without a spare or a link, and how often it tries


def run_with_restarts(run: HostsRun, say: Say, started: Callable[[str], None] = lambda _cell: None) -> RunDirectory:
    """As `run_on_hosts`, again after a loss, as often as `run` has restarts.

    A spare takes the place of each host that cannot be reached, also before the run starts first. If the first host
    is gone, the spare gets the checkpoint that was copied here. Without a spare, an elastic run that has begun goes
    on with the other hosts; it grows when the lost ones can be reached again. Those come last: the first host has
    the newest checkpoint. A run that has begun waits for a host or a link that may be back, ten minutes at most.

    Raises:
        As `run_on_hosts`.
    """
    left, began = Restarts(run.restarts), False
    reason: Loss | Return | None = None
    until: float | None = None  # when the wait for a host or a link ends; its tries are no losses
    while True:
        try:
            return run_on_hosts(run, say, started, reason)
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
            # A host that has just started may answer before its disks and its clock are there.
            may_be_back = bool(unfit.gone) or isinstance(unfit, Unlinked) or until is not None
            if not began or not may_be_back:
                raise
            if until is None:
                until = time.monotonic() + _AWAY_S
                say(f"{unfit.problems[0]}; waiting up to {period_text(_AWAY_S)} for it")
            if time.monotonic() >= until:
                raise
            with Signals() as signals, signals.raised():
                time.sleep(_POLL_S)
        except RunLost as failure:
            began, until = True, None
            if failure.back:
                run = run.with_back(failure.back)
                cause = f"{', '.join(host.name for host in failure.back)} can be reached again"
                reason = Return(cause=cause, noticed=time.time())
                say(f"{cause}: the run goes on with {nodes_of(run.hosts)}")
                continue
            if not left.allow(failure.step):
                raise left.ended(failure) from None
            say(f"{cause_in(failure.what)}; the run starts again from its last checkpoint")
            reason = failure.loss
            run = dataclasses.replace(run, again=run.again and not failure.began)


def nodes_of(hosts: Sequence[Host]) -> str:
    """The number of nodes on `hosts`, in words."""
    return counted(sum(host.slots for host in hosts), "node")


def with_spares(
    hosts: Sequence[Host], gone: Collection[str], spares: Sequence[Host]
) -> tuple[tuple[Host, ...], tuple[Host, ...]] | None:
    """The `hosts` with spares in place of those that are `gone`, and the spares that are left.

    None if none of them is gone, or if a host that is gone has as many slots as no spare.
    """
    found, left = list[Host](), [spare for spare in spares if spare.name not in gone]
    for host in hosts:
        if host.name in gone:
            spare = next((spare for spare in left if spare.slots >= host.slots), None)
            if spare is None:
                return None
            left.remove(spare)
            host = dataclasses.replace(spare, slots=host.slots)
        found.append(host)
    return None if found == list(hosts) else (tuple(found), tuple(left))
