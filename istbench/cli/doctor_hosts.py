"""`istbench doctor --hosts`: report other hosts and measure the links between them."""

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from istbench.base.errors import UserError, printable
from istbench.base.files import write_errors, writing_whole
from istbench.cli import EXIT_FAILED
from istbench.cluster.profile import MessageCosts, bandwidth_text
from istbench.launch.hosts.connection import Connection, connected
from istbench.launch.hosts.group import Unfit, ask_all, gather
from istbench.launch.hosts.links import (
    MEASURES_S,
    HostLink,
    Rates,
    bus_words,
    check_gpus,
    measure_bus,
    measure_links,
    measure_together,
    shared_link,
    shared_links,
    slow_links,
)
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.profile import MeasuredNode, profile_toml
from istbench.launch.hosts.remote_programs import BusBandwidth, program
from istbench.report.output.terminal import print_table
from istbench.report.tables.table import ColumnOf, Entry, Table, column, table_of

_SPEED_S, _ANSWERS_S = 240.0, 300.0
_OUT = Path("results")  # of a run without --out


def examine(hosts: Sequence[Host], names: Sequence[str], config: Path | None, profile: Path | None) -> int:
    """List the abilities of `hosts` and of the links between them, and write `profile`; returns the exit status.

    names: of the Pythons on hosts, as `pythons` has them.

    Raises:
        UserError, RunFailed: if the profile cannot be written.
        KeyboardInterrupt: after a signal.
    """
    if profile is not None and len(hosts) < 2:
        raise UserError("--profile measures links, and one host has none; give at least two hosts")
    with connected(hosts, names, config) as (connections, _):
        try:
            group = gather(connections, _OUT, marks=False)
            for name, facts in group.facts.items():
                gpus = f", {facts.gpus} GPUs" if facts.gpus else ""
                has = f"istbench {facts.istbench}, torch {facts.torch}, Python {facts.python}"
                where = f"{facts.host} at {group.addresses[name]}"
                _finding("ok", name, f"{where}: {facts.cores} cores{gpus}, {has}, clock {group.clocks[name]}")
            of_torch = check_gpus(connections, group)
            if several := [name for name, count in of_torch.items() if count > 1]:
                whole = f"from each GPU of {', '.join(several)} to each other of its host, a tensor arrives whole"
                _finding("ok", "gpu copies", whole)
            links = measure_links(connections, group.addresses, MEASURES_S, say)
            together = measure_together(connections, group.addresses, MEASURES_S, links)
            if links:
                click.echo()
                print_table(links_table(links, together), sys.stdout)
            bus, status = None, 0
            try:
                bus = measure_bus(connections, group, of_torch, MEASURES_S)
            except Unfit as unfit:  # as over links too slow for it, which the profile describes nevertheless
                status = EXIT_FAILED
                _finding("broken", "all-reduce", "; ".join(unfit.problems))
            if bus is not None:
                state, line = bus_words(bus, links)
                _finding(state, "all-reduce", line)
            shared = shared_link(links, together)
            for line in (*slow_links(links), *([shared.words] if shared else shared_links(links, together))):
                _finding("slow", "link", line)
            if profile is not None:
                _write(profile, profile_of(connections, links, together, bus))
        except Unfit as unfit:
            for problem in unfit.problems:
                name, _, detail = problem.partition(": ")
                _finding("broken", name, detail)
            return EXIT_FAILED
    return status


def links_table(links: Sequence[HostLink], together: Rates) -> Table:
    """Bandwidth and latency of every link."""
    columns: list[ColumnOf[HostLink]] = [
        column("from", "from", lambda link: link.source, align="left"),
        column("to", "to", lambda link: link.target, align="left"),
        column("bits_per_s", "bandwidth", lambda link: _bandwidth_entry(link.bandwidth)),
        column(
            "bits_per_s_together",
            "together",
            lambda link: _bandwidth_entry(together.get((link.source, link.target))),
        ),
        column(
            "latency_s", "one way", lambda link: Entry(text=f"{link.latency_s * 1e3:.3g} ms", value=link.latency_s)
        ),
    ]
    title = "Links, one TCP connection at a time; together, while every host sends to one other"
    return table_of(columns, links, title=title, keys=2)


def _bandwidth_entry(rate: float | None) -> Entry:
    return Entry(text="" if rate is None else bandwidth_text(rate, 3), value=rate)


def _finding(state: str, what: str, detail: str) -> None:
    click.echo(printable(f"{state:<7}  {what:<16}  {detail}"))


def profile_of(
    connections: Sequence[Connection],
    links: Sequence[HostLink],
    together: Rates,
    bus: BusBandwidth | None = None,
) -> str:
    """Write the file of a cluster profile: links, alone and together, and the computing speed of all hosts at once.

    bus: of an all-reduce, which `source` tells.

    Raises:
        Unfit: if a host cannot answer.
    """
    say("measuring the computing speed of the hosts and the cost of messages")
    first, slots = connections[0], {host.name: host.host.slots for host in connections}

    def programs(host: Connection) -> dict[str, Any]:
        environments = [{"LOCAL_RANK": str(slot)} for slot in range(slots[host.name])]
        return program("speed", str(slots[host.name]), limit_s=_SPEED_S, environments=environments)

    of_messages = program("carrying", limit_s=_SPEED_S)
    try:
        nodes = ask_all(connections, "run_programs", list[MeasuredNode], programs, _ANSWERS_S)
        costs = ask_all([first], "run_programs", tuple[MessageCosts], lambda _: of_messages, _ANSWERS_S)
    except Unfit as unfit:
        problems = [line.replace(": ", ": its computing speed is unknown: ", 1) for line in unfit.problems]
        raise Unfit(problems) from None
    if few := [name for name, own in nodes.items() if len(own) != slots[name]]:
        raise Unfit([f"{name}: its computing speed is unknown: it measured too few processes" for name in few])
    (carrying,) = costs[first.name]
    return profile_toml(nodes, slots, links, together, carrying, datetime.date.today().isoformat(), bus)


def _write(path: Path, text: str) -> None:
    with write_errors(path, "give another --profile"), writing_whole(path) as file:
        file.write(text.encode())
    say(f"wrote {path}; `istbench replay --cluster {path}`")


def say(text: str) -> None:
    """Print a line on standard error."""
    click.echo(printable(text), err=True)
