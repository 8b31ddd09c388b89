"""Ranks as threads of this process, with the part of a fabric that a checkpoint needs; a stop; a kept record."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch.distributed import HashStore

from istbench.fabric.signed_store import SignedStore
from istbench.fabric.texts import Texts
from istbench.node.destinations import Destination
from istbench.results.events import Evaluation


class Rank:
    """One of several; the bytes that it hands to another are in `sent`."""

    device = torch.device("cpu")

    def __init__(self, store, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.texts = Texts(store, rank, world_size)
        self.sent = 0

    def numbers(self, value):
        told = self.texts.gather(str(value))
        return [float(word) for word in self.texts.broadcast(" ".join(told)).split()]

    def barrier(self, name):
        self.numbers(0)

    def accounting(self, purpose):
        return nullcontext()


def on_ranks(count, act):
    """`act(fabric)` on each of `count` ranks; what each returned, or the error that rank 0 raised."""
    store, found = SignedStore(HashStore(), b"a key"), SimpleNamespace(values=[None] * count, error=None)

    def live(rank):
        try:
            found.values[rank] = act(Rank(store, rank, count))
        except Exception as error:
            found.error = found.error or error

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and found.error is None:
            thread.join(0.05)
    if found.error is not None:
        raise found.error
    return found.values


class StopsAt:
    """Stands for `Stopping`: all ranks agreed on a step beforehand."""

    def __init__(self, step):
        self.step = step

    def start(self, step):
        pass

    def reached(self, step):
        return step >= self.step

    def close(self):
        pass


class Kept(Destination):
    """Keeps the events and the result of a run."""

    def __init__(self):
        self.events, self.result = [], None

    @property
    def evaluations(self):
        return [event for event in self.events if isinstance(event, Evaluation)]

    def record(self, event):
        self.events.append(event)

    def finish(self, result):
        self.result = result
