"""Texts between ranks, as threads of this process: waited for as long as their sender shows signs of life."""

import threading
import time

import pytest

from istbench.base.activity import Activity
from istbench.fabric import FabricError
from istbench.fabric.texts import Texts

TIMEOUT_S = 1.0
HOSTS = ("anna", "berta", "carla")


class Store(dict):
    """A store in memory; `lost` has every later call of it wait for ever, as a lost host does."""

    lost = threading.Event()

    def _answer(self):
        if self.lost.is_set():
            threading.Event().wait()

    def set(self, key, value):
        self._answer()
        self[key] = value

    def read(self, key):
        self._answer()
        return self.get(key)


@pytest.fixture
def texts(monkeypatch):
    """Texts of three ranks, which show signs of life once they are told to `start`, and the store."""
    own = Activity()  # threads of other tests may still wait
    for module in ("texts", "heartbeats"):
        monkeypatch.setattr(f"istbench.fabric.{module}.current", own)
    store = Store()
    store.lost = threading.Event()
    found = [Texts(store, rank, 3, TIMEOUT_S, HOSTS, grace_s=1.0) for rank in range(3)]
    yield found, store
    for one in found:
        one.heartbeats.stop()


def test_a_word_of_one_who_lives_is_waited_for_beyond_the_time_out(texts):
    (zero, one, _), _ = texts
    zero.heartbeats.start()
    said = threading.Timer(2.5 * TIMEOUT_S, lambda: zero.broadcast("go on"))
    said.start()
    assert one.broadcast() == "go on"
    said.join()


def test_words_are_told_in_order_and_by_rank(texts):
    ranks, _ = texts
    assert [one.gather(f"from {rank}") for rank, one in reversed(list(enumerate(ranks)))] == [
        [], [], ["from 0", "from 1", "from 2"]
    ]  # fmt: skip
    assert [one.broadcast(word) for one, word in zip(ranks, ("first", "", ""), strict=True)] == ["first"] * 3


def test_one_who_falls_silent_is_named_with_its_host_and_what_it_did(texts):
    (zero, _, two), _ = texts
    zero.heartbeats.start()
    time.sleep(0.1)
    zero.heartbeats.stop()
    with pytest.raises(FabricError) as failure:
        two.broadcast()
    assert str(failure.value) == ("rank 2 on carla gave up after 1 s: no heartbeat from rank 0 on anna")


def test_rank_0_names_one_who_falls_silent(texts):
    (zero, one, _), _ = texts
    one.gather("mine")
    with pytest.raises(FabricError, match="^rank 0 on anna gave up after 1 s: no heartbeat from rank 2 on carla$"):
        zero.gather("mine")


def test_a_store_that_answers_no_more_ends_a_wait(texts):
    (zero, one, _), store = texts
    zero.heartbeats.start()
    threading.Timer(0.2, store.lost.set).start()
    with pytest.raises(FabricError, match=r"^rank 1 gave up after 1 s: no answer from the store of"):
        one.broadcast()
    assert one.who_is_missing(3, True) == ""


def test_one_who_waits_too_is_not_missing_and_one_who_lives_is_told_from_one_who_is_silent(texts):
    (zero, one, two), store = texts
    one.heartbeats.start()
    store.set("alive/2", "99.1 works training step 7")
    assert zero.who_is_missing(5, True) == "no heartbeat from rank 2 on carla (training step 7)"
    two.heartbeats.start()
    assert zero.who_is_missing(5, False) == ""
    store.set("gave-up/1", "5")
    # Its connection broke because rank 1 gave up, and not by itself.
    assert zero.who_is_missing(5, False) == "rank 2 on carla did not join, but is alive"
