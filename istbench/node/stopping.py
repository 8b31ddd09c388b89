"""Stopping a run at a local step that all nodes agree on, when its launcher asks for it.

The launcher leaves a mark; a thread of every worker looks for it, and training pays for a comparison a step. Nodes
may be a round apart, and one may wait for another inside an exchange, so none may just stop where it is. So the
thread of every node sets a limit a little ahead of its training and tells rank 0, which answers with the largest. A
node that reaches its own limit earlier waits there for the answer. No node passes its own limit without it, so none
is beyond the largest, and all stop there.
"""

import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_LOOKS_S, _ANSWERS_S = 0.2, 0.02
_LEAST_STEPS = 2  # one may just begin while the limit is set


@dataclass(frozen=True)
class StopRequest:
    """What a launcher and its workers tell one another in `scratch`, a directory that both know."""

    scratch: Path

    def ask(self) -> bool:
        """Ask the workers to stop; False where none of them trains, so that none would."""
        if not self._heeded.exists():
            return False
        self._asked.touch()
        return True

    def asked(self) -> bool:
        """Whether the launcher has asked."""
        return self._asked.exists()

    def heed(self) -> None:
        """Say that a worker trains."""
        self._heeded.touch()

    @property
    def _asked(self) -> Path:
        return self.scratch / "stop"

    @property
    def _heeded(self) -> Path:
        return self.scratch / "trains"


class Board(Protocol):
    """What all nodes' threads see; nothing of it waits."""

    def post(self, key: str, word: str) -> None:
        """Say `word` under `key`."""

    def posted(self, key: str) -> str | None:
        """What was said under `key`, if anything."""


class Stopping:
    """This node's part; `reached` is asked before every local step.

    ahead_s: seconds of training that limits lie ahead, so that all nodes have heard by then and none has to wait.
    """

    def __init__(
        self, request: StopRequest, board: Board, rank: int, world_size: int, ahead_s: float = 0.5
    ) -> None:
        self._request, self._board, self._rank, self._world_size = request, board, rank, world_size
        self._ahead_s = ahead_s
        self._lock = threading.Lock()
        self._step, self._limit = 0, math.inf
        self._answered, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stopping", daemon=True)

    def start(self, step: int) -> None:
        """Training goes on from local step `step`: look for the mark from here on."""
        self._step = step
        self._request.heed()
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def reached(self, step: int) -> bool:
        """Whether training stops before local step `step`; the same on all nodes."""
        with self._lock:
            self._step = step
            if step < self._limit:
                return False
        self._answered.wait()
        return step >= self._limit

    def _watch(self) -> None:
        looks = max(1, round(self._ahead_s / _LOOKS_S))
        seen = [(time.monotonic(), self._step)]
        while not self._request.asked():
            if self._over.wait(_LOOKS_S):
                return
            seen = [*seen[-looks:], (time.monotonic(), self._step)]
        with self._lock:
            then, before = seen[0]
            rate = (self._step - before) / max(time.monotonic() - then, _LOOKS_S)
            limit = self._step + _LEAST_STEPS + round(rate * self._ahead_s)
            self._limit = limit
        self._board.post(f"stop/{self._rank}", str(limit))
        if self._rank == 0:
            limits = [self._awaited(f"stop/{rank}") for rank in range(self._world_size)]
            self._board.post("stop/at", str(max(limits)))
        agreed = self._awaited("stop/at")
        with self._lock:
            self._limit = agreed
        self._answered.set()

    def _awaited(self, key: str) -> int:
        while (word := self._board.posted(key)) is None:
            time.sleep(_ANSWERS_S)
        return int(word)
