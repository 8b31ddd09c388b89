"""Joining the process group this worker was launched into."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from istbench.fabric.errors import FabricError, peers_needed
from istbench.fabric.fabric import Fabric
from istbench.fabric.pulse import introduce, not_come
from istbench.fabric.signed_store import SignedStore

RUN_KEY = "ISTBENCH_RUN_KEY"
"""Names the environment variable that holds the key of a job, in hexadecimal: its launcher makes one for each."""


def connect(*, device: str = "cpu", timeout_s: float = 300.0, latency_s: float = 0.0) -> Fabric:
    """Join the process group named by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment.

    ISTBENCH_RUN_KEY signs what the ranks tell one another through the group's store.

    Uses nccl where every rank has a GPU of its own and gloo otherwise; with gloo, ranks may share a GPU.
    `timeout_s` bounds every operation of the returned fabric, in seconds; `latency_s` is added to every message.

    Raises:
        FabricError: where others do not come in time, or leave before all have met.
    """
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    place = _device_of_rank(device)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    own_gpu = place.type == "cuda" and torch.cuda.device_count() >= local_world_size
    timeout = timedelta(seconds=timeout_s)
    with peers_needed(f"rank {rank} could not meet the others"):
        store, rank, world_size = next(dist.rendezvous("env://", rank, world_size, timeout=timeout))
        beside = SignedStore(dist.PrefixStore("fabric", store), bytes.fromhex(os.environ[RUN_KEY]))
        introduce(beside, rank)
        try:
            dist.init_process_group(
                "nccl" if own_gpu else "gloo",
                store=dist.PrefixStore("collectives", store),
                rank=rank,
                world_size=world_size,
                timeout=timeout,
            )
        except RuntimeError:
            if missing := not_come(beside, world_size):
                names = ", ".join(map(str, missing))
                who = f"rank {names} did not come within {timeout_s:g} s"
                raise FabricError(f"rank {rank} could not meet the others: {who}") from None
            raise
        several_hosts = local_world_size < world_size
        return Fabric(beside, place, timeout_s, latency_s, several_hosts)


def _device_of_rank(device: str) -> torch.device:
    if device != "cuda":
        return torch.device(device)
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    torch.cuda.set_device(place)
    return place
