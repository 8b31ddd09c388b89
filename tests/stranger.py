"""Someone who reaches a run's store from another account of the machine, and tries to run, read and end something.

`stranger.py UID PORT START` becomes user UID before it connects, and says START in the place of rank 0. It writes
what a rank would, under the keys that istbench uses now and those that it used before it signed anything, and
prints what it did and what it read.
"""

import os
import sys
import time
from datetime import timedelta

from torch.distributed import TCPStore

PREFIXES = ("istbench/0/", "istbench/0/before/", "istbench/0/run/", "istbench/0/cell/0/")
_UNSIGNED = "0" * 64


def connect(port):
    until = time.monotonic() + 120
    while True:
        try:
            return TCPStore(
                "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2)
            )
        except RuntimeError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def write(store, key, value):
    """`value` at `key` of every prefix, bare and with a signature of nobody's."""
    for prefix in PREFIXES:
        store.set(prefix + key, value if prefix == PREFIXES[0] else _UNSIGNED + value)


def run_something(store, start):
    """Say that training begins, before rank 0 does, and where, until rank 0 says so."""
    write(store, "start", start)
    print("the stranger says that training begins", flush=True)
    until = time.monotonic() + 120
    while bytes(store.get("istbench/0/before/start")).startswith(_UNSIGNED.encode()):
        assert time.monotonic() < until
        store.set("istbench/0/start", start)
        time.sleep(0.02)


def read_it(store, start):
    """Print all that others wrote to the store."""
    for key in store.list_keys():
        if store.check([key]) and start.encode() not in (value := bytes(store.get(key))):
            print(key, value)


def end_it(store, start):
    """Say that a rank has ended badly, and that training begins elsewhere, again and again."""
    write(store, "over", "true")
    print("the stranger says that a rank has ended", flush=True)
    while True:
        write(store, "over", "true")
        store.set("istbench/0/start", start)
        time.sleep(0.05)


def main():
    uid, port, start = sys.argv[1:]
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    assert os.getuid() == int(uid)
    store = connect(int(port))
    print("the stranger is there", flush=True)
    run_something(store, start)
    read_it(store, start)
    end_it(store, start)


if __name__ == "__main__":
    main()
