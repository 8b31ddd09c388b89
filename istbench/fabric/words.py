"""What nodes tell one another through the process group's store, beside it: words, and who gave up waiting."""

import time
from contextlib import AbstractContextManager
from datetime import timedelta

from istbench.fabric.errors import peers_needed
from istbench.fabric.signed_store import SignedStore

_GRACE_S = 3.0  # how long a rank that timed out waits for the others to say where they are


class Words:
    """Words between rank 0 and the others, in the same order on every node, waited for however long."""

    def __init__(self, store: SignedStore, rank: int, world_size: int) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._said = 0

    def follow_zero(self, word: str = "") -> str:
        """Wait until rank 0 gets here too: it may have work that only it does. Returns its `word`."""
        self._said += 1
        key = f"followed/{self._said}"
        with self._told():
            if self._rank == 0:
                self._store.set(key, word)
                return word
            return self._word(key)

    def tell_zero(self, word: str) -> list[str]:
        """Every node's `word`, by rank, on rank 0, which waits for them; none on the others."""
        self._said += 1
        key = f"told/{self._said}"
        with self._told():
            self._store.set(f"{key}/{self._rank}", word)
            return [] if self._rank else [self._word(f"{key}/{rank}") for rank in range(self._world_size)]

    def missing_ranks(self, operations: int) -> list[int]:
        """The ranks that did not also give up waiting, as this one did at so many operations: they never came."""
        try:
            self._store.set(f"gave-up/{self._rank}", str(operations))
            time.sleep(_GRACE_S)
            others = (rank for rank in range(self._world_size) if rank != self._rank)
            return [rank for rank in others if not self._store.check([f"gave-up/{rank}"])]
        except RuntimeError:
            return []

    def _told(self) -> AbstractContextManager[None]:
        return peers_needed(f"rank {self._rank} could not hear from the others")

    def _word(self, key: str) -> str:
        self._store.wait([key], timedelta(days=30))
        return bytes(self._store.get(key)).decode()
