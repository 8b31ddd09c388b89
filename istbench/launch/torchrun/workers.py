"""Workers under torchrun. Each process of torchrun starts a worker for each cell that it trains, and watches it.

Before the first cell and before each, rank 0 checks that all ranks can train together.

A worker is a new process, which the process of torchrun only supervises. In one process, torch would keep parts of
the process group of an earlier cell: threads, connections, a CUDA context, and the number of threads of libraries.
"""

import dataclasses
import ipaddress
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from istbench.base.decode import decode_json, encode_json, encode_own
from istbench.base.errors import RunFailed, UserError, shown
from istbench.base.machine import host_name
from istbench.base.options.run import MAY_DIFFER_BY_HOST, RunRequest
from istbench.base.scratch import scratch_folder
from istbench.base.units import counted
from istbench.fabric.transport.connections import address_of, address_towards
from istbench.launch.cells.execute import training_job
from istbench.launch.cells.resolve import prepare_cell, prepare_cells, versions
from istbench.launch.processes.failures import PeersLost, WorkerLost
from istbench.launch.processes.launcher import Job, launch
from istbench.launch.processes.local import LocalWorkers, serve_store, start_workers
from istbench.launch.processes.place import Place
from istbench.launch.processes.world import World
from istbench.launch.torchrun.meeting import Announced, Card, CellMeeting, Ending, Meeting, meeting_of
from istbench.node.stopping import StopRequest
from istbench.results.header import Header
from istbench.results.store import RunDirectory

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_POLL_S = 1.0
_ENDINGS_S = 8.0  # for all ranks to end their workers, which may take five seconds
_OTHERS_END_S = 60.0  # for the other ranks to end normally after rank 0
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SAME = "install the same istbench on every host"
_FAILURES = {"user": UserError, "run": RunFailed}


@dataclass(frozen=True)
class Route(Place):
    """A place on this host that others reach by `interface`, which is empty if it is unknown."""

    interface: str

    def enter(self, rank: int) -> None:
        """Restrict gloo and NCCL to the interface, unless the user chose another."""
        for name in _INTERFACES:
            if self.interface:
                os.environ.setdefault(name, self.interface)


def route_to(master: str) -> Route:
    """The place of this process: the interface that GLOO_SOCKET_IFNAME names, or the one towards `master`.

    Raises:
        UserError: if this host has no route to `master`.
    """
    chosen = os.environ.get(_INTERFACES[0], "").split(",")[0]
    try:
        address = (chosen and address_of(chosen)) or address_towards(master)
    except OSError as error:
        raise UserError(
            f"no route from {host_name()} to {master} ({error.strerror or error}); give torchrun an "
            "--rdzv-endpoint that every host can reach"
        ) from None
    if chosen:
        return Route(address, chosen)
    names = [name for _, name in socket.if_nameindex()]
    if address.startswith("127.") or address == "::1":  # the interface has but one of its addresses
        return Route(address, next((name for name in ("lo", "lo0") if name in names), ""))
    return Route(address, next((name for name in names if address_of(name) == address), ""))


def _card_of(world: World, cell: Header, route: Route) -> Card:
    """The card of this rank for `cell`."""
    return _card(
        world,
        route,
        encode_json(cell.config).decode(),
        fingerprint=cell.data_source.fingerprint,
        threads=cell.threads,
        cores=cell.host.cores,
        own_gpu=cell.config.device == "cuda" and torch.cuda.device_count() >= world.local_size,
    )


def _card(world: World, route: Route, config: str, **of_cell: Any) -> Card:
    address = route.address
    return Card(rank=world.rank, host=host_name(), address=address, versions=versions(), config=config, **of_cell)


def command_as_text(requests: Sequence[RunRequest]) -> str:
    """The `requests` of a command as text for a card: by field, its value, or a list if they have several."""
    rows = [msgspec.to_builtins(request, enc_hook=encode_own) for request in requests]
    columns = {name: [row[name] for row in rows] for name in RunRequest.__struct_fields__ if name != "data"}
    fields = {
        name: values[0] if values.count(values[0]) == len(values) else values for name, values in columns.items()
    }
    return encode_json({"number of cells": len(rows), **fields}).decode()


def host_names(cards: Sequence[Card]) -> list[str]:
    """The host name of each rank. Hosts of one name get their addresses added."""
    addresses = {card.host: {other.address for other in cards if other.host == card.host} for card in cards}
    return [f"{card.host} ({card.address})" if len(addresses[card.host]) > 1 else card.host for card in cards]


def check_agreement(cards: Sequence[Card]) -> None:
    """Check that all ranks would train the same and can reach one another; `cards` are by rank.

    Raises:
        UserError: naming the host that differs from that of rank 0, and the difference.
    """
    names = host_names(cards)
    first, here = cards[0], names[0]
    for card, host in zip(cards, names, strict=True):
        differing = [
            f"{what} {_compared(what, card)} ({_compared(what, first)} on {here})"
            for what in first.versions
            if _compared(what, card) != _compared(what, first)
        ]
        if differing:
            raise UserError(f"{host} has {', '.join(differing)}; install the same on every host")
    for card, host in zip(cards, names, strict=True):
        own, other = (
            decode_json(of.config.encode(), dict[str, Any], f"the command of {name}", _SAME)
            for of, name in ((card, host), (first, here))
        )
        for name in other:
            if name not in MAY_DIFFER_BY_HOST and own.get(name) != other[name]:
                raise UserError(
                    f"{name} is {shown(own.get(name))} on {host} and {shown(other[name])} on {here}; give the same "
                    "command on every host"
                )
        if card.fingerprint != first.fingerprint:
            raise UserError(
                f"{host} and {here} have different data (fingerprints {card.fingerprint[:12]} and "
                f"{first.fingerprint[:12]}); give every host the same --data, or the same prepared cache"
            )
        if card.own_gpu != first.own_gpu:
            with_gpu, without = (host, here) if card.own_gpu else (here, host)
            raise UserError(
                f"{with_gpu} has a GPU for every process, and {without} does not; use --device cpu, or start one "
                "process for each GPU of a host"
            )
    loopback = [_is_loopback(card.address) for card in cards]
    if any(loopback) and not all(loopback):
        host = names[loopback.index(True)]
        raise UserError(
            f"{host} reaches the rendezvous endpoint by its loopback interface, which no other host can reach; "
            f"give torchrun an --rdzv-endpoint with an address of {host} on the network"
        )


def _compared(what: str, card: Card) -> str:
    version = card.versions.get(what, "none")
    return version.rpartition(".")[0] if what == "python" else version  # patch versions of Python may differ


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def agreed(cell: Header, cards: Sequence[Card]) -> Header:
    """The `cell` of rank 0 with the number of threads for which all hosts have cores, their names and cores."""
    cores = {name: card.cores for name, card in zip(host_names(cards), cards, strict=True)}
    known = [count for count in cores.values() if count is not None]
    together = sum(known) if len(known) == len(cores) else None
    host = msgspec.structs.replace(cell.host, name=", ".join(cores), count=len(cores), cores=together)
    return msgspec.structs.replace(cell, threads=min(card.threads for card in cards), host=host)


@dataclass(frozen=True, kw_only=True)
class TorchrunLauncher:
    """Starts the worker of this rank. The launcher of rank 0 also starts the training and collects the endings.

    Attributes:
        store: the store of the workers on rank 0, which serves it; on other ranks its address and port.
        hosts: the host of every rank, on rank 0.
    """

    meeting: CellMeeting
    place: Route
    store: "TCPStore | tuple[str, int]"
    hosts: tuple[str, ...] = ()

    def start(self, job: Job) -> "TorchrunWorkers":
        """Start the worker of this rank; see `Launcher.start`."""
        world, store = self.meeting.world, self.store
        address, port = store if isinstance(store, tuple) else (store.host, store.port)
        worker = dataclasses.replace(world, master=address, port=port)
        environment = worker.environment(job.threads, self.meeting.worker_key())
        own = start_workers(job, self.place, {world.rank: environment})
        if world.rank == 0:
            self.meeting.start(job.threads, address, port)
        return TorchrunWorkers(own, self.meeting, self.hosts, job.stop)


class TorchrunWorkers:
    """The workers of all ranks, as one rank sees them; it watches its own worker."""

    def __init__(
        self, own: LocalWorkers, meeting: CellMeeting, hosts: tuple[str, ...], stop: StopRequest | None = None
    ) -> None:
        self._own, self._meeting, self._hosts, self._stop = own, meeting, hosts, stop
        self._told = False

    def wait(self) -> None:
        """Wait for the workers of all ranks on rank 0, and for its own on another rank; see `Workers.wait`."""
        interrupted = None
        try:
            ending = self._watch()
        except KeyboardInterrupt as interrupt:
            ending, interrupted = Ending(kind="interrupted"), interrupt
        if ending.kind != "done":
            self._own.end()
        self._meeting.post_ending(ending)
        if self._meeting.world.rank == 0:
            self._judge()
        if interrupted is not None or ending.kind == "interrupted":
            raise interrupted or KeyboardInterrupt
        if ending.kind != "done":
            raise RunFailed(ending.message)

    def _watch(self) -> Ending:
        try:
            while not self._own.poll(_POLL_S):
                if self._meeting.is_over():
                    return Ending(kind="ended")
                self._pass_on()
        except UserError as error:
            return Ending(kind="user", message=str(error))
        except PeersLost as error:
            return Ending(kind="lost", message=str(error))
        except WorkerLost as error:
            return Ending(kind="gone", message=error.what, lines=error.lines)
        except RunFailed as error:
            return Ending(kind="run", message=str(error))
        return Ending(kind="interrupted" if self._stop is not None and self._stop.requested() else "done")

    def _pass_on(self) -> None:
        """Pass a request to stop from this launcher to the other ranks, or from another rank to this worker."""
        if self._stop is None or self._told:
            return
        if self._stop.requested():
            self._meeting.ask_to_stop()
        elif self._meeting.is_to_stop():
            self._stop.request()
        self._told = self._stop.requested()

    def _judge(self) -> None:
        """Wait for the endings of all ranks; raises the cause where they did not all end well."""
        until, over = time.monotonic() + _OTHERS_END_S, False
        while len(endings := self._meeting.endings()) < len(self._hosts) and time.monotonic() < until:
            if not over and self._meeting.is_over():
                until, over = time.monotonic() + _ENDINGS_S, True
            time.sleep(_POLL_S / 10)
        if cause := cause_of(endings, self._hosts):
            raise cause

    def end(self) -> None:
        """End the worker of this rank; see `Workers.end`."""
        self._own.end()


def cause_of(endings: dict[int, Ending], hosts: tuple[str, ...]) -> BaseException | None:
    """The cause of the end, from the `endings` of the ranks; None if all ended well. `hosts` are by rank.

    A rank without an ending was lost. Ranks that only miss another rank name no cause.
    """
    told = [(hosts[rank], ending) for rank, ending in sorted(endings.items())]
    for kind, failure in _FAILURES.items():
        for host, ending in told:
            if ending.kind == kind:
                return failure(f"{host}: {ending.message}")
    gone, lost = (
        [WorkerLost(f"{host}: {ending.message}", ending.lines) for host, ending in told if ending.kind == kind]
        for kind in ("gone", "lost")
    )
    missing = [
        WorkerLost(f"{host}: worker {rank} is gone: its process was killed, or its host was lost")
        for rank, host in enumerate(hosts)
        if rank not in endings
    ]
    for cause in [*gone, *missing, *lost]:
        return cause
    return None if all(ending.kind == "done" for ending in endings.values()) else KeyboardInterrupt()


# The fields of a request that each rank takes from its own command line: they name files, or depend on its machine.
_OWN = ("workload", "plugins", "data", "threads")


def announced(request: RunRequest, own: Sequence[RunRequest]) -> Announced:
    """The announcement of `request`, without its files; `own` are the requests of the command."""
    like = next(
        number
        for number, one in enumerate(own)
        if all(getattr(one, name) == getattr(request, name) for name in _OWN)
    )
    return Announced(
        request=msgspec.structs.replace(request, plugins=(), data=None, save=None, sinks=()), like=like
    )


def of_this_rank(found: Announced, own: Sequence[RunRequest]) -> RunRequest:
    """The cell that rank 0 announced, with the files that this rank's own command line names."""
    if found.like >= len(own):
        raise UserError(
            f"rank 0 trains cell {found.like + 1} of its command, and this one has {counted(len(own), 'cell')}; "
            "give the same command on every host"
        )
    fields = {name: getattr(own[found.like], name) for name in _OWN}
    return msgspec.structs.replace(found.request, **fields, save=None, sinks=())


def meet(world: World, own: Sequence[RunRequest]) -> Meeting:
    """Meet the other ranks, as rank 0, before the first cell; `own` are the requests of the command.

    Raises:
        UserError, RunFailed: if a rank cannot train, or has another command; the message names its host.
        KeyboardInterrupt: after a signal at any rank.
    """
    meeting = _arrive(world, own)
    cards = meeting.cards()
    check_agreement(cards)
    meeting.start(cards)
    return meeting


def _arrive(world: World, own: Sequence[RunRequest]) -> Meeting:
    """Post the card of this rank, and handle SIGTERM as Ctrl-C from now on.

    torchrun sends it to all its processes, and they end together.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    meeting = meeting_of(world)
    meeting.post_card(_card(world, route_to(world.master), command_as_text(own)))
    return meeting


def follow(world: World, own: Sequence[RunRequest], out: Path) -> None:
    """Train the cells that rank 0 announces, until it ends the command, as another rank, which prints only errors.

    Only its own command line, with the requests `own`, names the files that it reads and imports.

    Raises:
        UserError, RunFailed: if this rank cannot train.
        KeyboardInterrupt: after a signal.
    """
    meeting = _arrive(world, own)
    try:
        started = meeting.await_start()
        if started:
            _prepare(world, own)
            meeting.post_ready()
        while started and (found := meeting.await_cell()) is not None:
            _follow_cell(*found, own, out)
    except KeyboardInterrupt:
        with suppress(RunFailed):  # torchrun has ended
            meeting.ask_to_stop()
        raise


def _prepare(world: World, own: Sequence[RunRequest]) -> None:
    """Prepare the data of another host than that of rank 0, while rank 0 prepares its own."""
    if world.host_rank > 0 and world.local_rank == 0:
        with suppress(UserError, RunFailed):  # the announced cell has the same error
            prepare_cells(own, lambda *_: None, here=world.local_size)


def _follow_cell(found: Announced, meeting: CellMeeting, own: Sequence[RunRequest], out: Path) -> None:
    world = meeting.world
    meeting.answer()
    try:
        if world.local_rank > 0 and not meeting.await_prepared():
            return
        cell = prepare_cell(of_this_rank(found, own), lambda *_: None, here=world.local_size)
        if world.local_rank == 0:
            meeting.post_prepared()
        place = route_to(world.master)
        meeting.post_card(_card_of(world, cell, place))
    except (UserError, RunFailed) as error:
        status = 2 if isinstance(error, UserError) else 1
        meeting.post_card(Card(rank=world.rank, host=host_name(), error=str(error), status=status))
        return
    start = meeting.await_start()
    if start is None:
        return
    cell = msgspec.structs.replace(cell, threads=start.threads)
    with scratch_folder() as scratch:
        # On other hosts than that of rank 0, the worker only keeps its part of a checkpoint there.
        run = RunDirectory.of(out, cell.cell).path.resolve() if world.host_rank == 0 else scratch / "run"
        job = training_job(run, scratch, cell, world.size)
        store = (start.store_address, start.store_port)
        try:
            launch(TorchrunLauncher(meeting=meeting, place=place, store=store), job)
        except (UserError, RunFailed):  # rank 0 prints the cause
            meeting.await_end()


def lead(meeting: CellMeeting, cell: Header) -> tuple[Header, TorchrunLauncher, str]:
    """The `cell` as all its ranks run it, its launcher, and a line that names the network. Only rank 0 calls this.

    Raises:
        UserError, RunFailed: if a rank cannot train, or would train another cell; the message names its host.
        KeyboardInterrupt: after a signal at another rank.
    """
    world = meeting.world
    meeting.post_prepared()
    place = route_to(world.master)
    own = _card_of(world, cell, place)
    meeting.post_card(own)
    cards = meeting.cards()
    check_agreement(cards)
    cell = agreed(cell, cards)
    hosts = tuple(host_names(cards))
    said = (
        f"{counted(world.size, 'node')} on {counted(len(set(hosts)), 'host')}, talking by "
        f"{'NCCL' if own.own_gpu else 'gloo'} over {place.interface or 'the interface'} ({place.address})"
    )
    store = serve_store(place)
    return cell, TorchrunLauncher(meeting=meeting, place=place, store=store, hosts=hosts), said
