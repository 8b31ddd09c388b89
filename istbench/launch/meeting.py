"""What the ranks that torchrun started tell one another beside training, through torchrun's store.

Every rank posts a card; rank 0 compares them, and says `start`. While they train, each says how it ended, and
`over` ends all where that is not well. `final` is the exit status of all.
"""

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from istbench.config.numbers import Count
from istbench.door import decode_json, encode_own
from istbench.errors import RunFailed, UserError
from istbench.launch.asked import host_name
from istbench.launch.world import World
from istbench.results.header import Header

if TYPE_CHECKING:
    from torch.distributed import PrefixStore

_POLL_S = 0.1
_CONNECTS_S = 60.0
_LEAVE_S = 10.0
_INTERRUPTED = 130
T = TypeVar("T")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is ready for, or why it is not.

    Attributes:
        host, address: its machine, and that machine's address towards the others.
        versions: of istbench, torch and Python. config: a `RunConfig` as JSON, which another version may not read.
        fingerprint: of its data. cores: of its machine, None if not known.
        own_gpu: whether it has a GPU that no other process of its machine has.
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
    error: str = ""
    status: int = 0


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's word that training begins: its run directory, and the header there."""

    run: str
    header: Header


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's part of a job ended.

    Attributes:
        kind: well ("done"), by a user's mistake, otherwise by itself ("run"), for want of another rank ("lost"), by
            a signal ("interrupted"), because another's part had ended ("ended").
    """

    kind: Literal["done", "user", "run", "lost", "interrupted", "ended"]
    message: str = ""


class Meeting:
    """This rank's view of what all have said. Nothing is waited for longer than torchrun's store is there."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def _store(self) -> "PrefixStore":
        from torch.distributed import PrefixStore, TCPStore

        where = (self.world.master, self.world.port)
        store = TCPStore(*where, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_CONNECTS_S))
        return PrefixStore(self.world.prefix, store)

    def _asked(self, ask: "Callable[[PrefixStore], T]") -> T:
        try:
            return ask(self._store)
        except RuntimeError as error:
            raise RunFailed(
                f"torchrun's store at {self.world.master}:{self.world.port} does not answer "
                f"({str(error).splitlines()[0]}); torchrun has ended there, or its host is lost"
            ) from None

    def _put(self, key: str, value: object) -> None:
        content = msgspec.json.encode(value, enc_hook=encode_own).decode()
        self._asked(lambda store: store.set(key, content))

    def _get(self, key: str, kind: type[T]) -> T | None:
        """What was put at `key`, None where nothing was yet."""
        if not self._asked(lambda store: store.check([key])):
            return None
        content = self._asked(lambda store: store.get(key))
        return decode_json(
            bytes(content), kind, f"{key} in torchrun's store", "run one version of istbench everywhere"
        )

    # Before training.

    def post_card(self, card: Card) -> None:
        """Say what this rank is ready for; the first word counts."""
        key = f"card/{card.rank}"
        if not self._asked(lambda store: store.check([key])):
            self._put(key, card)

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
                    continue
                if card.error and card.status == _INTERRUPTED:
                    raise KeyboardInterrupt
                if card.error:
                    raise (UserError if card.status == 2 else RunFailed)(f"{card.host}: {card.error}")
                cards[rank] = card
            time.sleep(_POLL_S)
        return [cards[rank] for rank in range(self.world.size)]

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

    def start(self, start: Start) -> None:
        """Rank 0: let training begin."""
        self._put("start", start)

    def await_start(self) -> Start | None:
        """Wait for `start`; None where all are to end instead."""
        while True:
            found = self._get("start", Start)
            if found is not None or self._get("final", int) is not None:
                return found
            time.sleep(_POLL_S)

    # While training.

    def say(self, word: Word) -> None:
        """Say how this rank's part ended; where not well, all are to end."""
        self._put(f"word/{self.world.rank}", word)
        if word.kind != "done":
            self._put("over", True)

    def is_over(self) -> bool:
        """Whether any rank's part ended other than well."""
        return self._get("over", bool) is not None

    def words(self) -> dict[int, Word]:
        """What has been said so far, by rank."""
        found = {rank: self._get(f"word/{rank}", Word) for rank in range(self.world.size)}
        return {rank: word for rank, word in found.items() if word is not None}

    # Afterwards.

    def end(self, status: int, wait_s: float = 0.0) -> None:
        """Rank 0: have all exit with `status`, and give them `wait_s` to know."""
        self._put("final", status)
        until = time.monotonic() + wait_s
        while self._asked(lambda store: store.add("left", 0)) < self.world.size - 1 and time.monotonic() < until:
            time.sleep(_POLL_S)

    def await_end(self) -> int:
        """Wait for the exit status of all."""
        while (status := self._get("final", int)) is None:
            time.sleep(_POLL_S)
        self._asked(lambda store: store.add("left", 1))
        return status


def leave(world: World, message: str, status: int) -> tuple[str, int]:
    """What this rank is to say of the `message` it fails with, and its exit status: rank 0 speaks for all.

    Where nobody hears of it any more, it speaks for itself.
    """
    meeting = Meeting(world)
    # torchrun ends the others as soon as one has ended, and their exit status is to be the same.
    try:
        if world.rank == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            meeting.end(status, _LEAVE_S)
            return message, status
        meeting.post_card(Card(rank=world.rank, host=host_name(), error=message, status=status))
        status = meeting.await_end()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return "", status
    except RunFailed:
        return message, status
    except KeyboardInterrupt:
        return "", _INTERRUPTED
