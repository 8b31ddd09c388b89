"""Transports of several ranks in one process: each is real, and so are its connections."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch.distributed as dist

from istbench.fabric import Traffic
from istbench.fabric.signed_store import SignedStore
from istbench.fabric.transport import Transport


@contextmanager
def transports(count, timeout_s=60.0):
    store = SignedStore(dist.HashStore(), b"a key of these ranks")
    with ThreadPoolExecutor(count) as pool:
        made = list(pool.map(lambda rank: Transport(store, rank, count, timeout_s, Traffic()), range(count)))
    try:
        yield made
    finally:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(Transport.close, made))
