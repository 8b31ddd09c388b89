"""On a host: measure how fast a node computes and what a message costs, in a process of its own.

`python -m istbench.hosts.remote_speed THREADS [carrying]` prints it as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from istbench.hosts.agent_program import Agent

_LIMIT_S = 240.0
_SHAPE = (256, 1024, 1024)  # of a layer of a thousand units, and a minibatch


def speed(agent: Agent, question: Mapping[str, Any]) -> dict[str, Any]:
    """`gflops` of a node with `threads` threads, `memory` in bytes, and on request the cost of `carrying`."""
    words = [str(question["threads"]), *(["carrying"] if question["carrying"] else [])]
    with subprocess.Popen(
        [sys.executable, "-m", "istbench.hosts.remote_speed", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        agent.undo.append(process.kill)
        out, error = process.communicate(timeout=_LIMIT_S)
    if process.returncode:
        raise OSError((error.strip().splitlines() or ["it ended without a word"])[-1])
    found: dict[str, Any] = json.loads(out)
    return found


def _main() -> None:
    import torch

    from istbench.machine import memory_bytes
    from istbench.node.measure import matmul_gflops

    torch.set_num_threads(int(sys.argv[1]))
    gpu = torch.cuda.is_available()
    memory = torch.cuda.get_device_properties(0).total_memory if gpu else memory_bytes()
    gflops = matmul_gflops(*_SHAPE, torch.device("cuda" if gpu else "cpu"))
    found: dict[str, Any] = {"gflops": gflops, "memory": memory, "gpu": gpu}
    if "carrying" in sys.argv:
        import msgspec

        from istbench.processes.carrying import measure_carrying

        found["carrying"] = msgspec.to_builtins(measure_carrying().all_reduce)
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
