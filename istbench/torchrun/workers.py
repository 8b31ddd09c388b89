"""Workers on the hosts where torchrun started this command: each of its processes runs one node, and watches it."""

import os
import socket
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from istbench.cells.execute import run_directory
from istbench.cells.resolve import Cell, prepare_cell
from istbench.config.run import RunRequest
from istbench.errors import RunFailed, UserError
from istbench.fabric.transport.connections import address_of, address_towards
from istbench.machine import host_name
from istbench.node.stopping import StopRequest
from istbench.node.worker import train_cell
from istbench.processes.failures import PeersLost, WorkerLost
from istbench.processes.launcher import Job, launch
from istbench.processes.local import LocalWorkers, environment_at, serve_store, start_workers
from istbench.results.store import RunDirectory
from istbench.torchrun.agreement import agreed, as_text, check_agreement, host_names, with_threads
from istbench.torchrun.meeting import Card, Meeting, Word, meeting_of
from istbench.torchrun.world import World

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_POLL_S = 1.0
_LAST_WORDS_S = 8.0  # for all ranks to end their workers, who may take five seconds
_FAREWELL_S = 60.0  # for the others to end well once rank 0 has
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_FAILURES = {"user": UserError, "run": RunFailed}


@dataclass(frozen=True)
class Route:
    """A place: this host, by the interface that others reach it by; `interface` is empty where none is known."""

    address: str
    interface: str

    def built(self) -> nullcontext[None]:
        """Nothing to do: the network is there."""
        return nullcontext()

    def listening(self) -> nullcontext[None]:
        """Nothing to do: the launching process is at this address."""
        return nullcontext()

    def enter(self, rank: int) -> None:
        """Keep gloo and NCCL to the interface, unless the user chose another."""
        for name in _INTERFACES:
            if self.interface:
                os.environ.setdefault(name, self.interface)


def route_to(master: str) -> Route:
    """The place of this process: by the interface that leads to `master`, or that GLOO_SOCKET_IFNAME names.

    Raises:
        UserError: where `master` is no address that can be reached.
    """
    chosen = os.environ.get(_INTERFACES[0], "").split(",")[0]
    try:
        address = (chosen and address_of(chosen)) or address_towards(master)
    except OSError as error:
        raise UserError(
            f"no way from {host_name()} to {master} ({error.strerror or error}); give torchrun an "
            "--rdzv-endpoint that every host reaches"
        ) from None
    if chosen:
        return Route(address, chosen)
    names = [name for _, name in socket.if_nameindex()]
    if address.startswith("127."):  # the interface has but one of its addresses
        return Route(address, next((name for name in ("lo", "lo0") if name in names), ""))
    return Route(address, next((name for name in names if address_of(name) == address), ""))


def card_of(world: World, cell: Cell, route: Route) -> Card:
    """What this rank is ready for."""
    own_gpu = cell.config.device == "cuda" and torch.cuda.device_count() >= world.local_size
    return Card(
        rank=world.rank,
        host=host_name(),
        address=route.address,
        versions=cell.header.versions,
        config=as_text(cell.config),
        fingerprint=cell.header.data_source.fingerprint,
        cores=cell.header.host.cores,
        own_gpu=own_gpu,
    )


@dataclass(frozen=True, kw_only=True)
class TorchrunLauncher:
    """Runs this rank's worker; rank 0's lets the others `start` theirs, and judges how all ended.

    Attributes:
        store: where the workers meet, on rank 0, which serves it; elsewhere its address and port.
        hosts: the host of every rank, on rank 0.
    """

    meeting: Meeting
    place: Route
    store: "TCPStore | tuple[str, int]"
    hosts: tuple[str, ...] = ()

    def start(self, job: Job) -> "TorchrunWorkers":
        """Set this rank's worker of `job` going; see `Launcher.start`."""
        world, store = self.meeting.world, self.store
        address, port = store if isinstance(store, tuple) else (store.host, store.port)
        environment = {
            "RANK": str(world.rank),
            "LOCAL_RANK": str(world.local_rank),
            "WORLD_SIZE": str(world.size),
            "LOCAL_WORLD_SIZE": str(world.local_size),
            "GROUP_RANK": str(world.host_rank),
            "OMP_NUM_THREADS": str(job.threads),
            **environment_at(address, port, self.meeting.worker_key()),
        }
        own = start_workers(job, self.place, {world.rank: environment})
        if world.rank == 0:
            self.meeting.start(job.threads, address, port)
        return TorchrunWorkers(own, self.meeting, self.hosts, job.stop)


class TorchrunWorkers:
    """All ranks' workers, as seen from one, which has one of them itself."""

    def __init__(
        self, own: LocalWorkers, meeting: Meeting, hosts: tuple[str, ...], stop: StopRequest | None = None
    ) -> None:
        self._own, self._meeting, self._hosts, self._stop = own, meeting, hosts, stop
        self._told = False

    def wait(self) -> None:
        """Return when all have ended well, on rank 0; elsewhere when this rank's has. See `Workers.wait`."""
        interrupted = None
        try:
            word = self._watch()
        except KeyboardInterrupt as interrupt:
            word, interrupted = Word(kind="interrupted"), interrupt
        if word.kind != "done":
            self._own.end()
        self._meeting.say(word)
        if self._meeting.world.rank == 0:
            self._judge()
        if interrupted is not None or word.kind == "interrupted":
            raise interrupted or KeyboardInterrupt
        if word.kind != "done":
            raise RunFailed(word.message)

    def _watch(self) -> Word:
        try:
            while not self._own.poll(_POLL_S):
                if self._meeting.is_over():
                    return Word(kind="ended")
                self._pass_on()
        except UserError as error:
            return Word(kind="user", message=str(error))
        except PeersLost as error:
            return Word(kind="lost", message=str(error))
        except WorkerLost as error:
            return Word(kind="gone", message=error.what, lines=error.lines)
        except RunFailed as error:
            return Word(kind="run", message=str(error))
        return Word(kind="interrupted" if self._stop is not None and self._stop.requested() else "done")

    def _pass_on(self) -> None:
        """Tell the others that this rank's launcher was asked to stop, or this rank's worker that another's was."""
        if self._stop is None or self._told:
            return
        if self._stop.requested():
            self._meeting.ask_to_stop()
        elif self._meeting.is_to_stop():
            self._stop.request()
        self._told = self._stop.requested()

    def _judge(self) -> None:
        """Return when all are done; else raise the cause, once every rank had time to say what it knows."""
        until, over = time.monotonic() + _FAREWELL_S, False
        while len(words := self._meeting.words()) < len(self._hosts) and time.monotonic() < until:
            if not over and self._meeting.is_over():
                until, over = time.monotonic() + _LAST_WORDS_S, True
            time.sleep(_POLL_S / 10)
        if cause := cause_of(words, self._hosts):
            raise cause

    def end(self) -> None:
        """End this rank's worker; see `Workers.end`."""
        self._own.end()


def cause_of(words: dict[int, Word], hosts: tuple[str, ...]) -> BaseException | None:
    """What ended a job, by what each rank said of its end; None where all ended well. `hosts` by rank.

    A rank that said nothing was lost, and what others miss it for is no cause.
    """
    for kind, failure in _FAILURES.items():
        for rank, word in sorted(words.items()):
            if word.kind == kind:
                return failure(f"{hosts[rank]}: {word.message}")
    told = {
        kind: [
            WorkerLost(f"{hosts[rank]}: {word.message}", word.lines)
            for rank, word in sorted(words.items())
            if word.kind == kind
        ]
        for kind in ("gone", "lost")
    }
    missing = [
        WorkerLost(f"{host}: worker {rank} is gone: its process was killed, or its host was lost")
        for rank, host in enumerate(hosts)
        if rank not in words
    ]
    for cause in [*told["gone"], *missing, *told["lost"]]:
        return cause
    return None if all(word.kind == "done" for word in words.values()) else KeyboardInterrupt()


def follow(world: World, request: RunRequest, out: Path) -> int:
    """Be a rank other than 0 of a run: prepare, train, and say nothing but what is wrong; returns the exit status.

    What it reads, imports and runs is named by its own command line alone.

    Raises:
        UserError, RunFailed: where this rank cannot train.
        KeyboardInterrupt: after a signal.
    """
    meeting = meeting_of(world)
    if world.local_rank > 0 and not meeting.await_prepared():
        return meeting.await_end()
    cell = prepare_cell(replace(request, save=None), lambda *_: None, here=world.local_size)
    if world.local_rank == 0:
        meeting.post_prepared()
    place = route_to(world.master)
    meeting.post_card(card_of(world, cell, place))
    start = meeting.await_start()
    if start is None:
        return meeting.await_end()
    cell = with_threads(cell, start.threads)
    with tempfile.TemporaryDirectory(prefix="istbench-", ignore_cleanup_errors=True) as scratch:
        job = Job(
            target=train_cell,
            args=(str(_run_directory(world, cell, out, Path(scratch))), scratch),
            nodes=world.size,
            threads=cell.config.threads,
            logs=Path(scratch) / "logs",
            timeout_s=cell.config.timeout_s,
            stop=StopRequest(Path(scratch)),
        )
        store = (start.store_address, start.store_port)
        try:
            launch(TorchrunLauncher(meeting=meeting, place=place, store=store), job)
        except (UserError, RunFailed):  # rank 0 says what it was
            return meeting.await_end()
    return 0


def _run_directory(world: World, cell: Cell, out: Path, scratch: Path) -> Path:
    """The run directory that this rank's worker reads: the cell's on rank 0's host, else one with a header."""
    if world.host_rank == 0:
        return run_directory(out, cell.name).path.resolve()
    run = RunDirectory(scratch / "run")
    run.create(cell.header)
    return run.path


def lead(world: World, cell: Cell) -> tuple[Cell, TorchrunLauncher, str]:
    """Rank 0: `cell` as all ranks run it, what runs it, and a line that says where and how they talk.

    Raises:
        UserError, RunFailed: where a rank cannot train, or would train something else, naming its host.
    """
    meeting = meeting_of(world)
    meeting.post_prepared()
    place = route_to(world.master)
    own = card_of(world, cell, place)
    meeting.post_card(own)
    cards = meeting.cards()
    check_agreement(cards)
    cell = agreed(cell, cards)
    hosts = tuple(host_names(cards))
    count = len(set(hosts))
    said = (
        f"{world.size} node{'s' if world.size > 1 else ''} on {count} host{'s' if count > 1 else ''}, talking by "
        f"{'NCCL' if own.own_gpu else 'gloo'} over {place.interface or 'the interface'} ({place.address})"
    )
    store = serve_store(place)
    return cell, TorchrunLauncher(meeting=meeting, place=place, store=store, hosts=hosts), said
