"""On a host: measure how fast a node computes, its memory, and what a message costs, in a process of its own.

`python -m istbench.launch.hosts.remote_speed THREADS [carrying]` prints it as JSON.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from istbench.launch.hosts.action import Agent
from istbench.launch.hosts.remote_programs import answers_of

_LIMIT_S = 240.0


def speed(agent: Agent, question: Mapping[str, Any]) -> dict[str, Any]:
    """`gflops`, `memory_gb_per_s` and `gather_gb_per_s` of a node with `threads` threads, `memory` in bytes, and on
    request the cost of `carrying`.
    """
    words = [str(question["threads"]), *(["carrying"] if question["carrying"] else [])]
    (found,) = answers_of(agent, "istbench.launch.hosts.remote_speed", words, [{}], _LIMIT_S)
    return dict(found)


def _main() -> None:
    import msgspec
    import torch

    from istbench.node.machine_speed import device_memory, speed_here

    torch.set_num_threads(int(sys.argv[1]))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    found: dict[str, Any] = {**msgspec.to_builtins(speed_here(device)), "memory": device_memory(device), "gpu": gpu}
    if "carrying" in sys.argv:
        from istbench.launch.processes.message_costs import measure_message_costs

        found["carrying"] = msgspec.to_builtins(measure_message_costs().all_reduce)
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
