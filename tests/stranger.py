"""Someone who reaches a run's store from another account of the machine, and tries to run, end or read something.

`stranger.py UID PORT HOW [WORDS]` becomes user UID before it connects. It writes what a rank would, under the keys
that istbench uses now and those that it used before it signed anything, and prints what it did.
"""

import os
import sys
import time
from datetime import timedelta

from torch.distributed import TCPStore

PREFIXES = ("istbench/0/", "istbench/0/before/", "istbench/0/run/")
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
    """Say that training begins, before rank 0 does, and where."""
    write(store, "start", start)
    print("the stranger speaks", flush=True)
    while True:
        store.set("istbench/0/start", start)
        time.sleep(0.02)


def end_it(store):
    """Say that a rank has ended badly, once all train, and again and again."""
    until = time.monotonic() + 120
    while not store.check(["istbench/0/before/start"]) and not store.check(["istbench/0/start"]):
        assert time.monotonic() < until
        time.sleep(0.05)
    print("the stranger speaks", flush=True)
    while True:
        write(store, "over", "true")
        time.sleep(0.05)


def read_it(store, until_key):
    """Print all that the store holds, once it has a key that ends in `until_key`."""
    until = time.monotonic() + 120
    while not any(key.endswith(until_key) for key in store.list_keys()):
        assert time.monotonic() < until
        time.sleep(0.05)
    for key in store.list_keys():
        if store.check([key]):
            print(key, bytes(store.get(key)))


def main():
    uid, port, how, *words = sys.argv[1:]
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    assert os.getuid() == int(uid)
    store = connect(int(port))
    print("the stranger is there", flush=True)
    {"run": run_something, "end": end_it, "read": read_it}[how](store, *words)


if __name__ == "__main__":
    main()
