"""Values in a store that anybody can write to."""

import time
from datetime import timedelta
from threading import Timer

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from istbench.fabric.signed_store import NotSigned, SignedStore, derived_key

SOON = timedelta(seconds=0.2)


@pytest.fixture
def plain():
    return HashStore()


def test_what_one_rank_says_another_hears(plain):
    SignedStore(plain, b"key").set("word", "größer")
    other = SignedStore(plain, b"key")
    assert other.wait("word", SOON) == "größer"
    assert (other.find("word"), other.read("word")) == ("größer", "größer")


@given(st.binary(max_size=200))
def test_what_a_stranger_writes_counts_as_absent(content):
    plain = HashStore()
    plain.set("word", content)
    store = SignedStore(plain, b"key")
    assert store.read("word") is None
    with pytest.raises(NotSigned, match="word in the store is not signed"):
        store.find("word")


def test_a_value_is_good_for_its_own_name_and_key_alone(plain):
    SignedStore(plain, b"key").set("one", "true")
    plain.set("two", plain.get("one"))
    assert SignedStore(plain, b"key").read("two") is None
    assert SignedStore(plain, b"another").read("one") is None
    assert SignedStore(plain, derived_key(b"key", "run 2")).read("one") is None


def test_a_value_that_a_stranger_was_first_to_write_is_waited_for(plain):
    plain.set("word", "anything")
    store = SignedStore(plain, b"key")
    Timer(0.3, lambda: store.set("word", "true")).start()
    assert store.wait("word", timedelta(seconds=60)) == "true"


def test_a_value_of_a_stranger_alone_is_named_when_time_is_out(plain):
    store = SignedStore(plain, b"key")
    with pytest.raises(RuntimeError, match="(?i)time"):
        store.wait("word", SOON)
    plain.set("word", "anything")
    started = time.monotonic()
    with pytest.raises(NotSigned, match="word"):
        store.wait("word", SOON)
    assert time.monotonic() - started < 30
