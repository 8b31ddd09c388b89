"""Joining a process group whose other members do not come."""

import threading
from datetime import timedelta

import pytest
import torch
from free_port import free_port
from torch.distributed import TCPStore

from istbench.base.errors import UserError
from istbench.fabric import FabricError, connect
from istbench.fabric.signed_store import SignedStore
from istbench.fabric.texts import Texts


@pytest.fixture
def first_of_two(monkeypatch):
    """This process as rank 0 of two; the port its store will listen on."""
    port = free_port()
    where = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ISTBENCH_RUN_KEY": "00",
    }
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    return port


def test_one_whom_nobody_joins_says_so(first_of_two):
    with pytest.raises(FabricError, match=r"rank 0 could not connect to the other ranks: .*imed out"):
        connect(timeout_s=1.0)


def test_one_whose_peer_goes_before_all_have_met_says_so(first_of_two):
    def come_and_go():
        TCPStore("127.0.0.1", first_of_two, 2, is_master=False, timeout=timedelta(seconds=9))

    peer = threading.Thread(target=come_and_go)
    peer.start()
    with pytest.raises(FabricError, match=r"rank 0 could not connect to the other ranks: "):
        connect(timeout_s=2.0)
    peer.join()


def test_words_for_want_of_the_store_are_for_want_of_peers():
    there = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mine = TCPStore("127.0.0.1", there.port, is_master=False)
    words = Texts(SignedStore(mine, b"a key of these ranks"), rank=1, world_size=2)
    waits = threading.Timer(0.2, lambda: gone.pop())
    gone = [there]
    del there
    waits.start()
    with pytest.raises(FabricError, match=r"rank 1 lost the store of the ranks: "):
        words.broadcast()


def test_a_rank_without_a_gpu_is_one_line(first_of_two, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match="^device cuda: torch sees no GPU here; use --device cpu$"):
        connect(device="cuda")
