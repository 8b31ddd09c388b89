"""A rendezvous of one machine: a store in the launching process that listens on the loopback interface only."""

import socket

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

_ADDRESS = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """Hands the elastic agent, and through it every worker, one store bound to 127.0.0.1."""

    def __init__(self) -> None:
        listener = socket.create_server((_ADDRESS, 0))
        self._port = listener.getsockname()[1]
        # The store closes the descriptor it is given.
        self._store = dist.TCPStore(
            _ADDRESS,
            self._port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def get_backend(self) -> str:
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = dist.PrefixStore("agent", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_ADDRESS, self._port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        return

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "istbench"

    def shutdown(self) -> bool:
        return True
