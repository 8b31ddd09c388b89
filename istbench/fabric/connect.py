"""Join the process group of this worker's job."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from istbench.base.activity import current
from istbench.base.errors import UserError
from istbench.base.machine import RUN_KEY
from istbench.fabric.errors import FabricError, peers_needed
from istbench.fabric.fabric import Fabric
from istbench.fabric.heartbeats import introduce, not_come
from istbench.fabric.signed_store import SignedStore

_CONNECTING = "connecting to the other ranks"


def connect(*, device: str = "cpu", timeout_s: float = 300.0) -> Fabric:
    """Join the process group named by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment.

    The key in ISTBENCH_RUN_KEY signs the ranks' texts in the group's store. The launcher makes a key for each job.

    Uses nccl if every rank has a GPU of its own, else gloo. With gloo, ranks may share a GPU. `timeout_s` bounds
    every operation of the returned fabric, in seconds.

    Raises:
        FabricError: if other ranks do not come in time, or leave before all have connected.
        UserError: for device cuda without a GPU.
    """
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    place = _device_of_rank(device)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    own_gpu = place.type == "cuda" and torch.cuda.device_count() >= local_world_size
    timeout = timedelta(seconds=timeout_s)
    # torch and gloo retry for longer than their time-outs, deaf to signals. So the launcher watches both steps.
    current.begin(_CONNECTING, timed=True)
    with peers_needed(f"rank {rank} could not connect to the other ranks"):
        store, rank, world_size = next(dist.rendezvous("env://", rank, world_size, timeout=timeout))
        signed = SignedStore(dist.PrefixStore("fabric", store), bytes.fromhex(os.environ[RUN_KEY]))
        introduce(signed, rank)
        current.begin(_CONNECTING, timed=True)
        try:
            dist.init_process_group(
                "nccl" if own_gpu else "gloo",
                store=dist.PrefixStore("collectives", store),
                rank=rank,
                world_size=world_size,
                timeout=timeout,
            )
        except RuntimeError:
            if missing := not_come(signed, world_size):
                names = ", ".join(map(str, missing))
                who = f"rank {names} did not connect within {timeout_s:g} s"
                raise FabricError(f"rank {rank} could not connect to the other ranks: {who}") from None
            raise
        current.begin("")
        several_hosts = local_world_size < world_size
        return Fabric(signed, place, timeout_s, several_hosts)


def _device_of_rank(device: str) -> torch.device:
    if device != "cuda":
        return torch.device(device)
    gpus = torch.cuda.device_count()
    if gpus == 0:  # as where the driver or the container lost them since the cell was resolved
        raise UserError("device cuda: torch sees no GPU here; use --device cpu")
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus)
    torch.cuda.set_device(place)
    return place
