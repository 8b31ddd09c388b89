"""On a host: take part in an all-reduce of all hosts, and compare copies between its GPUs.

`python -m istbench.launch.hosts.remote_all_reduce gpus`, or `all_reduce DEVICE SECONDS` as the rank that the
environment names, prints it as JSON.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from istbench.base.machine import HOST, cores
from istbench.launch.hosts.action import Agent
from istbench.launch.hosts.remote_programs import answers_of

_MODULE = "istbench.launch.hosts.remote_all_reduce"
LIMIT_S = 120.0


def gpus(agent: Agent, _question: Mapping[str, Any]) -> Any:
    """The `HostGpus` of this host."""
    return answers_of(agent, _MODULE, ["gpus"], [{}], LIMIT_S)[0]


def all_reduce(agent: Agent, question: Mapping[str, Any]) -> list[Any]:
    """The `BusBandwidth` that each of `slots` processes measures, whose ranks of `nodes` begin at `rank`."""
    address, port = question["endpoint"]
    common = {
        "WORLD_SIZE": str(question["nodes"]),
        "LOCAL_WORLD_SIZE": str(question["slots"]),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # else rank 0 opens one, which listens on all interfaces
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "ISTBENCH_RUN_KEY": question["key"],  # `RUN_KEY`, without importing torch
        "OMP_NUM_THREADS": str(max(1, cores() // question["slots"])),
        HOST: question["name"],
    }
    slots = range(question["slots"])
    places = [{**common, "RANK": str(question["rank"] + slot), "LOCAL_RANK": str(slot)} for slot in slots]
    words = ["all_reduce", question["device"], str(question["seconds"])]
    return answers_of(agent, _MODULE, words, places, LIMIT_S)


def _main() -> None:
    import msgspec

    if sys.argv[1] == "gpus":
        from istbench.node.gpu_copies import broken_copies, here

        print(json.dumps({"count": len(here()), "broken": broken_copies(here())}))
        return
    import os
    from dataclasses import replace

    from istbench.fabric import connect
    from istbench.launch.hosts.measured_bus import bus_bandwidth
    from istbench.launch.processes.local import serve_store
    from istbench.launch.torchrun.workers import route_to

    address, rank = os.environ["MASTER_ADDR"], int(os.environ["RANK"])
    route = route_to(address)
    route.enter(rank)
    # The store lives as long as this variable.
    _store = serve_store(replace(route, address=address), int(os.environ["MASTER_PORT"])) if rank == 0 else None
    with closing(connect(device=sys.argv[2], timeout_s=LIMIT_S / 2)) as fabric:
        found = bus_bandwidth(fabric, float(sys.argv[3]))
    print(json.dumps(msgspec.to_builtins(found)))


if __name__ == "__main__":
    _main()
