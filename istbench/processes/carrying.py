"""What carrying messages costs a node, measured by itself.

Nodes exchange small messages and large ones; the CPU time of their processes, all threads and what the kernel does
for them, is divided by what was carried. How long a small one takes is measured behind some computing, as messages
come in training: where a node has one core, threads that compute and carry take turns, and an all-reduce there
takes several times what one in a row of many does. All-reduces, direct transfers and the fabric's transport, which
`p3` uses, are measured apart: their messages take different ways through threads.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch

from istbench.cluster.profile import MessageCosts
from istbench.cluster.trace import POST, SEND, Trace
from istbench.fabric import Fabric
from istbench.fabric.transport import Message
from istbench.processes.local import LocalLauncher
from istbench.processes.on_nodes import on_nodes
from istbench.processes.place import Place, ThisMachine

_SMALL, _LARGE = 4, 2_000_000  # bytes
_SMALL_ONES, _LARGE_ONES = 200, 12
_COMPUTED_ONES, _COMPUTED_S = 40, 5e-3
_REPEATS = 5


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of each way that messages can go: in an all-reduce, directly, or by the transport."""

    all_reduce: MessageCosts
    transfer: MessageCosts
    transport: MessageCosts

    def of(self, trace: Trace) -> MessageCosts:
        """The costs of the messages in `trace`, whose method uses one of these ways."""
        if trace.meta.transport:
            return self.transport
        directly = any(bool(np.any(events["kind"][events["code"] == POST] == SEND)) for events in trace.nodes)
        return self.transfer if directly else self.all_reduce


def measure_carrying(nodes: int = 2, place: Place | None = None, dilation: float = 1.0) -> Ways:
    """Measure between `nodes` nodes in `place`, by default this machine's loopback interface.

    Args:
        dilation: how many times slower than meant clocks run there.

    Raises:
        UserError, RunFailed: where its processes do not start, or fail.
    """
    answers = on_nodes(carry, nodes, launcher=LocalLauncher(place=place or ThisMachine()))
    all_reduce, transfer, transport = zip(*(answer for answer in answers if answer), strict=True)
    # A ring all-reduce is so many messages one after another, each of an n-th of the tensor.
    hops = 2 * (nodes - 1)
    return Ways(
        all_reduce=_costs(all_reduce, dilation * hops, _LARGE / nodes, hops),
        transfer=_costs(transfer, dilation, _LARGE, 1),
        transport=_costs(transport, dilation, _LARGE, 1),
    )


def _costs(figures: Sequence[Sequence[float]], slower: float, size: float, messages: int) -> MessageCosts:
    """Of figures of operations of so many `messages` each way, the large ones of `size` bytes a message."""
    alone, following, small, large = (statistics.median(figure) for figure in zip(*figures, strict=True))
    return MessageCosts(
        message_s=alone / slower,
        next_s=min(alone, following) / slower,
        cpu_s_per_message=small / (2 * messages),
        cpu_s_per_byte=max(0.0, large - small) / (2 * messages * size),
    )


def carry(fabric: Fabric) -> list[list[float]]:
    """Runs on every node: for each way of carrying, medians of some repeats, of one operation.

    Wall seconds of a small one behind some computing and of one in a row, CPU seconds of a small and of a large
    one. Nothing from a node without a partner to exchange messages with.
    """
    background = _Background(fabric)
    partner = fabric.rank ^ 1
    here = partner < fabric.world_size
    found = []
    for way in (_all_reduces, _transfers, background.messages):
        repeats = []
        for _ in range(_REPEATS):
            fabric.barrier("measuring")
            repeats.append(_figures(fabric, partner, way) if here or way is _all_reduces else [])
        found.append([statistics.median(figure) for figure in zip(*repeats, strict=True)])
    return found if here else []


def _figures(fabric: Fabric, partner: int, way: Callable[[Fabric, int, int, int], None]) -> list[float]:
    def timed(size: int, count: int, times: int) -> tuple[float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(times):
            way(fabric, partner, size, count)
        messages = count * times
        return (time.perf_counter() - wall) / messages, (time.process_time() - cpu) / messages

    alone = []
    for _ in range(_COMPUTED_ONES):
        _compute(_COMPUTED_S)
        alone.append(timed(_SMALL, 1, 1)[0])
    following, small = timed(_SMALL, _SMALL_ONES, 1)
    _, large = timed(_LARGE, _LARGE_ONES, 1)
    return [statistics.fmean(alone), following, small, large]


def _compute(seconds: float) -> None:
    """Multiply matrices for so many CPU seconds of this thread."""
    until, matrix = time.thread_time() + seconds, torch.ones(128, 128)
    while time.thread_time() < until:
        torch.mm(matrix, matrix)


def _all_reduces(fabric: Fabric, partner: int, size: int, count: int) -> None:
    tensor = torch.zeros(size // 4)
    for _ in range(count):
        fabric.all_reduce_sum(tensor, "measuring")


def _transfers(fabric: Fabric, partner: int, size: int, count: int) -> None:
    mine = torch.zeros(size, dtype=torch.uint8)
    theirs = torch.empty_like(mine)
    for _ in range(count):
        fabric.exchange({partner: mine}, {partner: theirs}, "measuring")


class _Background:
    """Messages through the transport, counted as they come."""

    def __init__(self, fabric: Fabric) -> None:
        self._received = self._expected = 0
        self._places = {size: memoryview(bytearray(size)) for size in (_SMALL, _LARGE)}
        self._channel = fabric.transport.open(self)

    def buffer(self, peer: int, key: int) -> memoryview:
        return self._places[key]

    def arrived(self, peer: int, key: int, size: int) -> bool:
        self._received += 1
        return self._received >= self._expected

    def messages(self, fabric: Fabric, partner: int, size: int, count: int) -> None:
        with fabric.transport.lock:
            self._expected += count
        payload = memoryview(bytearray(size))
        fabric.transport.send(partner, [Message(self._channel, 0, size, payload)] * count)
        fabric.wait_for_messages(lambda: self._received >= self._expected, lambda: {partner}, "measuring")
