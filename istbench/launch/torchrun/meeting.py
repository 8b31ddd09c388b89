"""Messages between the ranks of torchrun, beside training, through the store of torchrun.

Every rank posts a card. Rank 0 compares the cards and writes `start`. Then it announces one cell after another. The
first ranks train it: they post and compare cards of this cell. While they train, each writes how its part ended;
`over` ends all ranks of the cell where a part did not end well. `final` ends a cell. At last it ends the command,
with the exit status of all ranks.

Every process that reaches the store can read and write it. So the ranks sign every value. Before `start` they use
the secret that they share. After it they use a key of this run, derived from the secret and a random number of each
rank. A value from another process counts as absent. So does a value copied from an earlier run, but only after
`start`. Before it, a copy with the same secret can end or hold up a run that waits. It starts none, because `start`
repeats the random number of every rank. Ranks take no path and no code from the store.
"""

import functools
import math
import os
import secrets
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec

from istbench.base.decode import decode_json, encode_own
from istbench.base.errors import RunFailed, UserError
from istbench.base.machine import host_name
from istbench.base.options.numbers import Count, Natural
from istbench.base.options.run import RunRequest
from istbench.launch.processes.failures import PeersLost
from istbench.launch.processes.world import World
from istbench.launch.torchrun.secret import SECRET, run_secret, secret_file

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from istbench.fabric.signed_store import SignedStore

_POLL_S = 0.1
_CONNECTS_S = 60.0
_LEAVE_S = 10.0
_FORGED_S = 10.0  # rank 0 waits this long for a card if the value in the store has a wrong signature
_STATUS_S = 120.0  # rank 0 waits up to 60 s for the other ranks, and ends its worker
_ANSWERS_S = 60.0  # an idle rank answers at once; one whose worker has to end, within seconds
_INTERRUPTED = 130
T = TypeVar("T")
Nonce = Annotated[str, msgspec.Meta(min_length=32, max_length=32)]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A rank presents itself before the first cell, and before each cell that it trains.

    Attributes:
        host: name of its machine. address: the address by which other machines reach it.
        versions: of istbench, torch and Python. config: a `RunConfig` as JSON, or the fields of the requests of its
            command; another version may not read it.
        fingerprint: of its data. threads: of its node, by the cores of its machine unless the command gives them.
        cores: of its machine, None if not known.
        own_gpu: whether it has a GPU that no other process of its machine uses.
        nonce: a random number; an answer to this card repeats it, an answer to an older card does not.
        error: the reason why this rank cannot train. status: its exit status.
    """

    rank: int
    host: str
    address: str = ""
    versions: dict[str, str] = {}
    config: str = "{}"
    fingerprint: str = ""
    threads: Count = 1
    cores: Count | None = None
    own_gpu: bool = False
    nonce: Nonce | None = None
    error: str = ""
    status: int = 0


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0 announces a cell to all ranks.

    Attributes:
        request: the cell, without the fields that name files.
        like: number of a request of the command. Each rank takes these fields from its own request of this number.
    """

    request: RunRequest
    like: Natural


class TrainingStart(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0 starts the training of a cell.

    Attributes:
        threads: of every node. store_address, store_port: the store of the workers.
    """

    threads: Count
    store_address: str
    store_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How the part of one rank ended.

    Attributes:
        kind: "done": it trained to the end. "user": a mistake of the user stopped it. "run": another error did.
            "gone": its worker was killed or is stuck. "lost": another rank went away. "interrupted": a signal
            stopped it. "ended": the part of another rank had ended.
        lines: the last lines that the worker printed.
    """

    kind: Literal["done", "user", "run", "gone", "lost", "interrupted", "ended"]
    message: str = ""
    lines: str = ""


class _Messages:
    """Messages between the ranks of `world`, as this rank reads and writes them. Every wait ends with the store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._forged: dict[str, float] = {}

    @cached_property
    def _signed(self) -> "SignedStore":
        """The store of the messages."""
        raise NotImplementedError

    def _asked(self, ask: "Callable[[SignedStore], T]") -> T:
        try:
            return ask(self._signed)
        except RuntimeError as error:
            # Other secrets differ again in another try.
            raise (RunFailed if self._forged else PeersLost)(
                f"torchrun's store at {self.world.master}:{self.world.port} does not answer "
                f"({str(error).splitlines()[0]}); torchrun has ended there, or its host is lost"
                f"{'; or ' + self._secrets_differ() if self._forged else ''}"
            ) from None

    def _secrets_differ(self) -> str:
        given = f"{SECRET} differs" if SECRET in os.environ else f"{secret_file()} differs"
        return (
            f"{given} between the hosts (copy one to all, or set {SECRET} alike), or someone else writes to "
            f"torchrun's store at {self.world.master}:{self.world.port} (keep them out by a firewall)"
        )

    def _put(self, key: str, value: object) -> None:
        content = msgspec.json.encode(value, enc_hook=encode_own).decode()
        self._asked(lambda store: store.set(key, content))

    def _get(self, key: str, kind: type[T]) -> T | None:
        """The value at `key`; None if no rank has written one yet."""
        from istbench.fabric.signed_store import NotSigned

        def find(store: "SignedStore") -> str | None:
            try:
                return store.find(key)
            except NotSigned:
                self._forged.setdefault(key, time.monotonic())
                return None

        content = self._asked(find)
        if content is None:
            return None
        return decode_json(
            content.encode(), kind, f"{key} in torchrun's store", "run one version of istbench everywhere"
        )

    def _is_there(self, key: str) -> bool:
        return self._asked(lambda store: store.read(key)) is not None

    def post_card(self, card: Card) -> None:
        """Post the card of this rank. Only its first card counts."""
        key = f"card/{card.rank}"
        if not self._is_there(key):
            self._put(key, card)

    def cards(self) -> list[Card]:
        """Wait for the cards of all ranks; returns them by rank.

        Raises:
            UserError, RunFailed, KeyboardInterrupt: as soon as a card has an error; the message names its host.
        """
        cards: dict[int, Card] = {}
        while len(cards) < self.world.size:
            for rank in set(range(self.world.size)) - cards.keys():
                card = self._get(f"card/{rank}", Card)
                if card is None:
                    self._check_absent(rank)
                    continue
                if card.error and card.status == _INTERRUPTED:
                    raise KeyboardInterrupt
                if card.error:
                    raise (UserError if card.status == 2 else RunFailed)(f"{card.host}: {card.error}")
                cards[rank] = card
            if self.is_to_stop():
                raise KeyboardInterrupt
            time.sleep(_POLL_S)
        return [cards[rank] for rank in range(self.world.size)]

    def _check_absent(self, rank: int) -> None:
        """Give up the card of `rank` where it cannot come any more.

        Raises:
            UserError, RunFailed: with the reason.
        """
        if time.monotonic() - self._forged.get(f"card/{rank}", math.inf) > _FORGED_S:
            raise UserError(f"rank {rank} does not have this run's secret: {self._secrets_differ()}")

    def ask_to_stop(self) -> None:
        """Ask all ranks to stop after a step, with a checkpoint."""
        self._put("stop", True)

    def is_to_stop(self) -> bool:
        """Whether some rank has requested a stop."""
        return self._get("stop", bool) is not None

    def end(self, status: int = 0) -> None:
        """Rank 0 ends this."""
        self._put("final", status)

    def _final(self) -> int | None:
        return self._get("final", int)


class Meeting(_Messages):
    """The messages of one torchrun.

    Attributes:
        hosts: the host of every rank, on rank 0.

    Raises:
        UserError: if this rank cannot read the secret of the run.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.hosts: list[str] = []
        self._secret = run_secret()
        self._nonce = secrets.token_hex(16)
        self._nonces: list[str] = []  # of all ranks, after `start`
        self._deserted = False
        self._cells = 0  # announced by this rank, or found by it

    @cached_property
    def _signed(self) -> "SignedStore":
        """The messages before `start`; `_begin` replaces it."""
        return self.signed("before", self._secret)

    @cached_property
    def _store(self) -> "TCPStore":
        from torch.distributed import TCPStore

        where = (self.world.master, self.world.port)
        return TCPStore(*where, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_CONNECTS_S))

    def signed(self, prefix: str, key: bytes) -> "SignedStore":
        """Signed values under `prefix` in the store of torchrun."""
        from torch.distributed import PrefixStore

        from istbench.fabric.signed_store import SignedStore

        return SignedStore(PrefixStore(f"{self.world.prefix}/{prefix}", self._store), key)

    def key(self, purpose: str) -> bytes:
        """A key of this run, the same on all ranks; needs the nonces of all ranks."""
        from istbench.fabric.signed_store import derived_key

        return derived_key(self._secret, f"{purpose} of {' '.join(self._nonces)}")

    def _begin(self) -> None:
        """Sign messages with the key of this run from here on."""
        self._signed = self.signed("run", self.key("words"))

    # Before the first cell.

    def post_card(self, card: Card) -> None:
        """Post the card of this rank, with its nonce. Only its first card counts."""
        super().post_card(msgspec.structs.replace(card, nonce=self._nonce))

    def start(self, cards: list[Card]) -> None:
        """Rank 0 starts the run of the ranks of all `cards`."""
        self.hosts = [card.host for card in cards]
        self._nonces = [card.nonce or "" for card in cards]
        self._put("start", self._nonces)
        self._begin()

    def _find_start(self) -> bool:
        """Begin if the `start` of rank 0 answers the card of this rank. That of an earlier run does not."""
        nonces = self._get("start", list[Nonce])
        if nonces is None or len(nonces) != self.world.size or nonces[self.world.rank] != self._nonce:
            return False
        self._nonces = nonces
        self._begin()
        return True

    def await_start(self) -> bool:
        """Wait for `start`; returns False if the run ends first."""
        while not (started := self._find_start()) and self._get("final", int) is None:
            time.sleep(_POLL_S)
        return started

    # Cell by cell.

    def post_ready(self) -> None:
        """Write that this rank has prepared data, and answers from now on."""
        self._put(f"ready/{self.world.rank}", True)

    def announce(self, announced: Announced) -> "CellMeeting":
        """Rank 0 announces the next cell to all ranks; returns the messages of those that train it."""
        key, meeting = f"announced/{self._cells}", self._of_next(announced)
        self._put(key, announced)
        return meeting

    def await_cell(self) -> "tuple[Announced, CellMeeting] | None":
        """Wait for the next cell that this rank trains; None if the run ends first. There is no limit of time.

        The wait ends with the store. torchrun serves it on the host of rank 0, and ends when rank 0 dies.
        """
        while True:
            announced = self._get(f"announced/{self._cells}", Announced)
            if announced is not None:
                meeting = self._of_next(announced)
                if self.world.rank < self.world.group_of(announced.request):
                    return announced, meeting
            elif self._final() is not None:
                return None
            else:
                time.sleep(_POLL_S)

    def _of_next(self, announced: Announced) -> "CellMeeting":
        number, self._cells = self._cells, self._cells + 1
        return CellMeeting(self, number, self.world.group_of(announced.request))

    # Afterwards.

    def leave(self, status: int) -> None:
        """Rank 0 writes the exit `status` of all ranks, and waits some seconds for them to read it."""
        self.end(status)
        others = [f"left/{rank}" for rank in range(1, self.world.size)]
        until = time.monotonic() + _LEAVE_S
        while not all(map(self._is_there, others)) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def await_end(self) -> int:
        """Wait for the exit status of all ranks.

        Raises:
            RunFailed: if rank 0 does not write it within two minutes after the failure of this rank in training.
        """
        status = self.await_final(self, _STATUS_S if self._nonces else math.inf)
        self._put(f"left/{self.world.rank}", True)
        return status

    def await_final(self, ending: _Messages, limit_s: float) -> int:
        """Wait for the end of `ending`, a cell or all; returns its status.

        Raises:
            RunFailed: if rank 0 does not report it within `limit_s`, or did not report an earlier one.
        """
        until = time.monotonic() + limit_s
        while (status := ending._final()) is None:
            if self._deserted or time.monotonic() > until:
                self._deserted = True
                raise RunFailed(
                    f"rank 0 has not reported the end of the run within {_STATUS_S:g} s: its istbench, on "
                    f"{self.world.master}, was stopped or killed; end it there, and run the same command again"
                )
            time.sleep(_POLL_S)
        return status

    def _final(self) -> int | None:
        if not self._nonces and self.world.rank:
            self._find_start()  # a rank that failed earlier has not read it yet
        return super()._final()


class CellMeeting(_Messages):
    """The messages of the ranks that train one cell.

    Raises:
        UserError: if torchrun started fewer than `nodes`.
    """

    def __init__(self, meeting: Meeting, number: int, nodes: int) -> None:
        super().__init__(meeting.world.first(nodes))
        self._meeting = meeting
        self._silent: dict[int, float] = {}  # since when rank 0 waits for the answers of ranks
        self._signed = meeting.signed(f"cell/{number}", meeting.key(f"cell {number}"))

    def worker_key(self) -> str:
        """The key that the workers of this cell share, in hexadecimal."""
        return self._signed.derived("workers").hex()

    # Before training.

    def answer(self) -> None:
        """Tell rank 0 that this rank has read the announcement."""
        self._put(f"answer/{self.world.rank}", True)

    def _check_absent(self, rank: int) -> None:
        super()._check_absent(rank)
        if not rank or not self._meeting._is_there(f"ready/{rank}") or self._is_there(f"answer/{rank}"):
            return
        if time.monotonic() - self._silent.setdefault(rank, time.monotonic()) > _ANSWERS_S:
            raise RunFailed(
                f"{self._meeting.hosts[rank]}: rank {rank} does not answer: its istbench was stopped or killed, or "
                "its host is lost; end the others, and run the same command again"
            )

    def post_prepared(self) -> None:
        """Write that the data of this host is ready. The first rank makes it, and the others map it."""
        self._put(f"prepared/{self.world.host_rank}", True)

    def await_prepared(self) -> bool:
        """Wait for `post_prepared` on this host; returns False if the cell ends first."""
        return self._await(f"prepared/{self.world.host_rank}", bool) is not None

    def start(self, threads: int, store_address: str, store_port: int) -> None:
        """Rank 0 starts the training, after it has read all `cards`."""
        self._put("start", TrainingStart(threads=threads, store_address=store_address, store_port=store_port))

    def await_start(self) -> TrainingStart | None:
        """Wait for `start`; returns None if the cell ends first."""
        return self._await("start", TrainingStart)

    def _await(self, key: str, kind: type[T]) -> T | None:
        while (value := self._get(key, kind)) is None and self._final() is None:
            time.sleep(_POLL_S)
        return value

    # While training.

    def post_ending(self, ending: Ending) -> None:
        """Write how the part of this rank ended. If it did not end well, all ranks end."""
        self._put(f"ending/{self.world.rank}", ending)
        if ending.kind != "done":
            self._put("over", True)

    def is_over(self) -> bool:
        """Whether the part of some rank did not end well."""
        return self._get("over", bool) is not None

    def is_to_stop(self) -> bool:
        """Whether some rank has requested a stop, also one that does not train this cell."""
        return super().is_to_stop() or self._meeting.is_to_stop()

    def endings(self) -> dict[int, Ending]:
        """The endings so far, by rank."""
        found = {rank: self._get(f"ending/{rank}", Ending) for rank in range(self.world.size)}
        return {rank: ending for rank, ending in found.items() if ending is not None}

    def await_end(self) -> None:
        """Wait until rank 0 has ended the cell, after the failure of this rank; raises as `Meeting.await_end`."""
        self._meeting.await_final(self, _STATUS_S)


@functools.cache
def meeting_of(world: World) -> Meeting:
    """The `Meeting` of this process. Another object would not know the key of the run."""
    return Meeting(world)


def leave(world: World, message: str, status: int) -> tuple[str, int]:
    """The message that this rank prints when its command ends with `message`, and its exit status.

    Rank 0 prints for all ranks. Another rank prints its own message where it does not reach rank 0.
    """
    # torchrun ends the other ranks as soon as one has ended, and all need the same exit status.
    try:
        meeting = meeting_of(world)
        if world.rank == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            meeting.leave(status)
            return message, status
        meeting.post_card(Card(rank=world.rank, host=host_name(), error=message, status=status))
        status = meeting.await_end()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return "", status
    except (UserError, RunFailed):
        return message, status
    except KeyboardInterrupt:
        return "", _INTERRUPTED
