"""Measure the cost of sending and receiving messages on a node, in wall and CPU seconds.

Nodes exchange small and large messages. The cost is the CPU time of all their threads, with the kernel's work for
them, divided by the number of messages and bytes. The latency of a small message is measured after some computing,
as in training. On a node with one core, the threads that compute and communicate take turns. There one all-reduce
after computing takes several times as long as one in a row of many. All-reduces, direct transfers and the fabric's
transport are measured separately, because their messages pass through different threads.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch

from istbench.cluster.collectives import COLLECTIVES, bytes_on_wire
from istbench.cluster.profile import MessageCosts
from istbench.cluster.trace import POST, SEND, Trace
from istbench.fabric import Fabric
from istbench.fabric.transport import TransportMessage
from istbench.processes.local import LocalLauncher
from istbench.processes.on_nodes import on_nodes
from istbench.processes.place import Place, ThisMachine

_SMALL, _LARGE = 4, 2_000_000  # bytes
_SMALL_ONES, _LARGE_ONES = 200, 12
_COMPUTED_ONES, _COMPUTED_S = 40, 5e-3
_REPEATS = 5

_IN_TURNS = ("all_gather", "reduce_scatter")  # the fabric's exchanges over the transport


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """The message costs of gloo's collectives, of its direct transfers and of the fabric's transport."""

    all_reduce: MessageCosts
    transfer: MessageCosts
    transport: MessageCosts

    def of(self, trace: Trace) -> MessageCosts:
        """The costs of the messages in `trace`: where they take several ways, means over messages and over bytes.

        The transport carries a method's own sends, if it has any, and all-gathers and reduce-scatters. In a trace
        without the transport, the process group carried all of them.
        """
        carried = self._carried(trace)
        if len(carried) < 2:
            return next(iter(carried), (self.all_reduce,))[0]
        messages, size = (max(1.0, math.fsum(own)) for own in list(zip(*carried, strict=True))[1:])
        return MessageCosts(
            message_s=math.fsum(costs.message_s * count for costs, count, _ in carried) / messages,
            next_s=math.fsum(costs.next_s * count for costs, count, _ in carried) / messages,
            cpu_s_per_message=math.fsum(costs.cpu_s_per_message * count for costs, count, _ in carried) / messages,
            cpu_s_per_byte=math.fsum(costs.cpu_s_per_byte * own for costs, _, own in carried) / size,
        )

    def _carried(self, trace: Trace) -> list[tuple[MessageCosts, float, float]]:
        """The ways of the messages in `trace`: the costs of each, its messages and its bytes."""
        posts = np.concatenate([events[events["code"] == POST] for events in trace.nodes])
        found: dict[str, tuple[float, float]] = {}
        for kind in np.unique(posts["kind"]).tolist():
            own = posts["bytes"][posts["kind"] == kind]
            if kind == SEND:
                way = "transport" if trace.meta.transport else "transfer"
                amounts = float(len(own)), float(own.sum())
            elif kind in COLLECTIVES:
                collective, n = COLLECTIVES[kind], trace.world_size
                way = "transport" if trace.meta.transport and collective.name in _IN_TURNS else "all_reduce"
                rows = collective.schedule(n)
                sent = sum(bytes_on_wire(collective.name, int(own.sum()), n, place)[0] for place in range(n))
                amounts = len(own) * sum(map(len, rows)) / len(rows), sent / n
            else:
                continue
            before = found.get(way, (0.0, 0.0))
            found[way] = before[0] + amounts[0], before[1] + amounts[1]
        return [(getattr(self, way), *sums) for way, sums in found.items() if sums[0]]


def measure_carrying(nodes: int = 2, place: Place | None = None, dilation: float = 1.0) -> Ways:
    """Measure between `nodes` nodes in `place`, by default over this machine's loopback interface.

    Args:
        dilation: the lab's time dilation in `place`; measured seconds are divided by it.

    Raises:
        UserError, RunFailed: if the processes do not start, or fail.
    """
    answers = on_nodes(carry, nodes, launcher=LocalLauncher(place=place or ThisMachine()))
    all_reduce, transfer, transport = zip(*(answer for answer in answers if answer), strict=True)
    # A ring all-reduce sends this many messages one after another, each with 1/n of the tensor.
    hops = 2 * (nodes - 1)
    return Ways(
        all_reduce=_costs(all_reduce, dilation * hops, _LARGE / nodes, hops),
        transfer=_costs(transfer, dilation, _LARGE, 1),
        transport=_costs(transport, dilation, _LARGE, 1),
    )


def _costs(figures: Sequence[Sequence[float]], slower: float, size: float, messages: int) -> MessageCosts:
    """Costs from measured operations of `messages` messages each way; large messages have `size` bytes."""
    single, following, small, large = (statistics.median(figure) for figure in zip(*figures, strict=True))
    return MessageCosts(
        message_s=single / slower,
        next_s=min(single, following) / slower,
        cpu_s_per_message=small / (2 * messages),
        cpu_s_per_byte=max(0.0, large - small) / (2 * messages * size),
    )


def carry(fabric: Fabric) -> list[list[float]]:
    """Measure on this node: for all-reduces, transfers and the transport, four medians for one operation each.

    The four are: wall seconds of a small operation after some computing, wall seconds of a small one in a row, CPU
    seconds of a small one, CPU seconds of a large one. A node without a partner returns an empty list.
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

    single = []
    for _ in range(_COMPUTED_ONES):
        _compute(_COMPUTED_S)
        single.append(timed(_SMALL, 1, 1)[0])
    following, small = timed(_SMALL, _SMALL_ONES, 1)
    _, large = timed(_LARGE, _LARGE_ONES, 1)
    return [statistics.fmean(single), following, small, large]


def _compute(seconds: float) -> None:
    """Multiply matrices for `seconds` CPU seconds of this thread."""
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
    """Messages through the transport, counted on arrival."""

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
        fabric.transport.send(partner, [TransportMessage(self._channel, 0, size, payload)] * count)
        fabric.wait_for_messages(lambda: self._received >= self._expected, lambda: {partner}, "measuring")
