"""What the ranks that torchrun started tell one another beside training, through torchrun's store.

Every rank posts a card; rank 0 compares them, and says `start`. While they train, each says how it ended, and
`over` ends all where that is not well. `final` is the exit status of all.

Anybody who reaches the store can read it and write to it. So every value is signed. Before `start` the secret that
the ranks share signs it; from then on a key of this run alone, made of the secret and a random number of each rank.
A value that someone else wrote, or copied from an earlier run, counts as absent. No path and no code is taken from
the store.
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

from istbench.config.numbers import Count
from istbench.door import decode_json, encode_own
from istbench.errors import RunFailed, UserError
from istbench.machine import host_name
from istbench.torchrun.secret import SECRET, run_secret, secret_file
from istbench.torchrun.world import World

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from istbench.fabric.signed_store import SignedStore

_POLL_S = 0.1
_CONNECTS_S = 60.0
_LEAVE_S = 10.0
_FORGED_S = 10.0  # how long rank 0 waits for the card of a rank whose place in the store has something else
_INTERRUPTED = 130
T = TypeVar("T")
Nonce = Annotated[str, msgspec.Meta(min_length=32, max_length=32)]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is ready for, or why it is not.

    Attributes:
        host, address: its machine, and that machine's address towards the others.
        versions: of istbench, torch and Python. config: a `RunConfig` as JSON, which another version may not read.
        fingerprint: of its data. cores: of its machine, None if not known.
        own_gpu: whether it has a GPU that no other process of its machine has.
        nonce: a random number, by which it knows an answer to this card from an older one.
        error: why it cannot train; status: the exit status that goes with it.
    """

    rank: int
    host: str
    address: str = ""
    versions: dict[str, str] = {}
    config: str = "{}"
    fingerprint: str = ""
    cores: Count | None = None
    own_gpu: bool = False
    nonce: Nonce | None = None
    error: str = ""
    status: int = 0


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's word that training begins.

    Attributes:
        threads: of every node. store_address, store_port: where the workers meet. nonces: of all cards, by rank.
    """

    threads: Count
    store_address: str
    store_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    nonces: list[Nonce]


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's part of a job ended.

    Attributes:
        kind: well ("done"), by a user's mistake, otherwise by itself ("run"), as its worker was killed or stuck
            ("gone"), for want of another rank ("lost"), by a signal ("interrupted"), because another's part had
            ended ("ended").
        lines: what the worker printed last.
    """

    kind: Literal["done", "user", "run", "gone", "lost", "interrupted", "ended"]
    message: str = ""
    lines: str = ""


class Meeting:
    """This rank's view of what all have said. Nothing is waited for longer than torchrun's store is there.

    Raises:
        UserError: where the secret of the run cannot be had.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._secret = run_secret()
        self._nonce = secrets.token_hex(16)
        self._nonces: list[str] = []  # of all ranks
        self._run: SignedStore | None = None
        self._forged: dict[str, float] = {}

    @cached_property
    def _before(self) -> "SignedStore":
        """What is said before `start`."""
        return self._signed("before", self._secret)

    @cached_property
    def _store(self) -> "TCPStore":
        from torch.distributed import TCPStore

        where = (self.world.master, self.world.port)
        return TCPStore(*where, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_CONNECTS_S))

    def _signed(self, prefix: str, key: bytes) -> "SignedStore":
        from torch.distributed import PrefixStore

        from istbench.fabric.signed_store import SignedStore

        return SignedStore(PrefixStore(f"{self.world.prefix}/{prefix}", self._store), key)

    def _key(self, purpose: str) -> bytes:
        """A key of this run, the same on all ranks, once the nonces of all are known."""
        from istbench.fabric.signed_store import derived_key

        return derived_key(self._secret, f"{purpose} of {' '.join(self._nonces)}")

    def worker_key(self) -> str:
        """The key of the job that `start` begins, in hexadecimal."""
        return self._key("workers").hex()

    def _begin(self) -> None:
        """From here on, what is said is signed with a key of this run."""
        self._run = self._signed("run", self._key("words"))

    def _asked(self, ask: "Callable[[SignedStore], T]") -> T:
        try:
            return ask(self._run or self._before)
        except RuntimeError as error:
            raise RunFailed(
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
        """What a rank has put at `key`, None where nothing was yet."""
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

    # Before training.

    def post_card(self, card: Card) -> None:
        """Say what this rank is ready for; the first word counts."""
        key = f"card/{card.rank}"
        if not self._asked(lambda store: store.check([key])):
            self._put(key, msgspec.structs.replace(card, nonce=self._nonce))

    def cards(self) -> list[Card]:
        """Every rank's card, by rank, once all are there.

        Raises:
            UserError, RunFailed, KeyboardInterrupt: as soon as one says why it cannot, naming its host.
        """
        cards: dict[int, Card] = {}
        while len(cards) < self.world.size:
            for rank in set(range(self.world.size)) - cards.keys():
                card = self._get(f"card/{rank}", Card)
                if card is None:
                    if time.monotonic() - self._forged.get(f"card/{rank}", math.inf) > _FORGED_S:
                        raise UserError(f"rank {rank} does not have this run's secret: {self._secrets_differ()}")
                    continue
                if card.error and card.status == _INTERRUPTED:
                    raise KeyboardInterrupt
                if card.error:
                    raise (UserError if card.status == 2 else RunFailed)(f"{card.host}: {card.error}")
                cards[rank] = card
            time.sleep(_POLL_S)
        found = [cards[rank] for rank in range(self.world.size)]
        self._nonces = [card.nonce or "" for card in found]
        return found

    def post_prepared(self) -> None:
        """Say that this host's data is ready: others of its ranks map what the first has made."""
        self._put(f"prepared/{self.world.host_rank}", True)

    def await_prepared(self) -> bool:
        """Wait for `post_prepared` on this host; False where all are to end instead."""
        key = f"prepared/{self.world.host_rank}"
        while self._get(key, bool) is None:
            if self._get("final", int) is not None:
                return False
            time.sleep(_POLL_S)
        return True

    def start(self, threads: int, store_address: str, store_port: int) -> None:
        """Rank 0: let training begin, once it has all `cards`."""
        self._put(
            "start",
            Start(threads=threads, store_address=store_address, store_port=store_port, nonces=self._nonces),
        )
        self._begin()

    def _find_start(self) -> Start | None:
        """Rank 0's `start`, where it answers this rank's card: one of an earlier run does not."""
        start = self._get("start", Start)
        if start is None or len(start.nonces) != self.world.size:
            return None
        if start.nonces[self.world.rank] != self._nonce:
            return None
        self._nonces = start.nonces
        self._begin()
        return start

    def await_start(self) -> Start | None:
        """Wait for `start`; None where all are to end instead."""
        while (start := self._find_start()) is None and self._get("final", int) is None:
            time.sleep(_POLL_S)
        return start

    # While training.

    def say(self, word: Word) -> None:
        """Say how this rank's part ended; where not well, all are to end."""
        self._put(f"word/{self.world.rank}", word)
        if word.kind != "done":
            self._put("over", True)

    def is_over(self) -> bool:
        """Whether any rank's part ended other than well."""
        return self._get("over", bool) is not None

    def ask_to_stop(self) -> None:
        """Say that all are to stop after a step, with a checkpoint."""
        self._put("stop", True)

    def is_to_stop(self) -> bool:
        """Whether any rank has said so."""
        return self._get("stop", bool) is not None

    def words(self) -> dict[int, Word]:
        """What has been said so far, by rank."""
        found = {rank: self._get(f"word/{rank}", Word) for rank in range(self.world.size)}
        return {rank: word for rank, word in found.items() if word is not None}

    # Afterwards.

    def end(self, status: int, wait_s: float = 0.0) -> None:
        """Rank 0: have all exit with `status`, and give them `wait_s` to know."""
        self._put("final", status)
        others = [f"left/{rank}" for rank in range(1, self.world.size)]
        until = time.monotonic() + wait_s
        while not self._asked(lambda store: store.check(others)) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def await_end(self) -> int:
        """Wait for the exit status of all."""
        while (status := self._final()) is None:
            time.sleep(_POLL_S)
        self._put(f"left/{self.world.rank}", True)
        return status

    def _final(self) -> int | None:
        if self._run is None and self.world.rank:
            self._find_start()  # which this rank has not waited for, where it failed before
        return self._get("final", int)


@functools.cache
def meeting_of(world: World) -> Meeting:
    """This process's `Meeting`: the key of a run is known to no other."""
    return Meeting(world)


def leave(world: World, message: str, status: int) -> tuple[str, int]:
    """What this rank is to say of the `message` it fails with, and its exit status: rank 0 speaks for all.

    Where nobody hears of it any more, it speaks for itself.
    """
    # torchrun ends the others as soon as one has ended, and their exit status is to be the same.
    try:
        meeting = meeting_of(world)
        if world.rank == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            meeting.end(status, _LEAVE_S)
            return message, status
        meeting.post_card(Card(rank=world.rank, host=host_name(), error=message, status=status))
        status = meeting.await_end()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return "", status
    except (UserError, RunFailed):
        return message, status
    except KeyboardInterrupt:
        return "", _INTERRUPTED
