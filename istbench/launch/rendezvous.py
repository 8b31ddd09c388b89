"""A rendezvous of one machine: a store in the launching process, at an address that its place gives."""

import socket

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from istbench.launch.place import Place


class StoreRendezvous(RendezvousHandler):
    """Hands the elastic agent, and through it every worker, one store bound to the place's address alone."""

    def __init__(self, place: Place) -> None:
        self._address = place.address
        with place.listening():
            listener = socket.create_server((self._address, 0))
            self._port = listener.getsockname()[1]
            # The store closes the descriptor it is given.
            self._store = dist.TCPStore(
                self._address,
                self._port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def get_backend(self) -> str:
        return "store"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = dist.PrefixStore("agent", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(self._address, self._port))

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
