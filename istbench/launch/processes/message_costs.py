"""Measure the cost of sending and receiving messages on a node, in wall and CPU seconds.

Nodes exchange small and large messages beside a step of training. In a tight loop they cost less: a lone message
wakes threads whose code and data have left the caches. The cost is the CPU time of the threads that do not train,
with the kernel's work for them, divided by the number of messages and bytes. The latency of a small message is
measured after computing, from the moment when all of its nodes are ready: nodes that share cores do not compute
equally fast. All-reduces, exchanges in turns, direct transfers and the fabric's transport are measured separately,
because their messages pass through different threads.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from istbench.cluster.message_ways import MessageWays
from istbench.cluster.profile import MessageCosts
from istbench.fabric import Fabric
from istbench.fabric.transport import TransportMessage
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes
from istbench.launch.processes.place import Place, ThisMachine
from istbench.node.effort import EFFORT

_SMALL, _LARGE = 4, 2_000_000  # bytes
_COMPUTED_S = 5e-3
_SAMPLES = 32  # of the step that computes


def measure_message_costs(nodes: int = 2, place: Place | None = None, dilation: float = 1.0) -> MessageWays:
    """Measure between `nodes` nodes of this machine in `place`, by default over its loopback interface.

    Args:
        dilation: the lab's time dilation in `place`; measured seconds are divided by it.

    Raises:
        UserError, RunFailed: if the processes do not start, or fail.
    """
    answers = on_nodes(measure_ways, nodes, launcher=LocalLauncher(place=place or ThisMachine()))
    return MessageWays(**{way: _costs([answer[way] for answer in answers], dilation) for way in _WAYS})


_Found = dict[str, list[float]]
"""What a node measured of one way.

size: messages of one operation that follow each other, and the part of the tensor in each. members: ranks of the
nodes in an operation. begin, end: of small operations after computing, by this machine's clock. following: wall
seconds of a small operation in a row. small, large: CPU seconds of the other threads in an operation beside a step.
"""


def _costs(found: Sequence[_Found], dilation: float) -> MessageCosts:
    """The costs of one way, from those that the nodes measured."""
    taking_part = [own for own in found if own["members"]]
    hops, share = taking_part[0]["size"]
    single = [seconds for own in taking_part for seconds in _latencies(found, own)]

    def median(figure: str) -> float:
        return statistics.median(value for own in taking_part for value in own[figure])

    # A node sends and receives in every hop.
    message_s, next_s = (seconds / hops / dilation for seconds in (statistics.median(single), median("following")))
    small, large = median("small"), median("large")
    return MessageCosts(
        message_s=message_s,
        next_s=min(message_s, next_s),
        cpu_s_per_message=small / (2 * hops),
        cpu_s_per_byte=max(0.0, large - small) / (2 * hops * share * _LARGE),
    )


def measure_ways(fabric: Fabric) -> dict[str, _Found]:
    """Measure every way on this node."""
    ways = {name: way(fabric) for name, way in _WAYS.items()}
    width = EFFORT.width
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))
    inputs = torch.ones(_SAMPLES, width)
    found: dict[str, _Found] = {}
    for name, way in ways.items():
        own = found[name] = {"size": list(way.size), "members": list(map(float, way.members))}
        own |= {figure: [] for figure in ("begin", "end", "following", "small", "large")}
        for _ in range(EFFORT.rounds):
            fabric.barrier("measuring")
            if way.members:
                _measure(way, lambda: model(inputs).sum().backward(), own)
    return found


def _measure(way: "_Way", step: Callable[[], None], found: _Found) -> None:
    for _ in range(EFFORT.after_computing):
        _compute(_COMPUTED_S)
        found["begin"].append(time.perf_counter())
        way.start(_SMALL)()
        found["end"].append(time.perf_counter())
    began = time.perf_counter()
    way.row(_SMALL, EFFORT.in_a_row)
    found["following"].append((time.perf_counter() - began) / EFFORT.in_a_row)
    alone, small, large = (_beside(way, step, size) for size in (0, _SMALL, _LARGE))
    found["small"].append(max(0.0, small - alone))
    found["large"].append(max(0.0, large - alone))


def _beside(way: "_Way", step: Callable[[], None], size: int) -> float:
    """CPU seconds of the threads that do not compute, in an operation of `size` bytes beside a step; 0 for none."""
    spent = []
    for _ in range(EFFORT.beside_computing):
        every, own = time.process_time(), time.thread_time()
        finish = way.start(size) if size else None
        step()
        if finish is not None:
            finish()
        spent.append((time.process_time() - every) - (time.thread_time() - own))
    return statistics.median(spent)


def _latencies(found: Sequence[_Found], own: _Found) -> list[float]:
    """Mean seconds of a small operation of `own` and its partners, by repeat, since all of them began it."""
    partners = [found[int(rank)] for rank in own["members"]]
    lasted = [
        max(partner["end"][number] for partner in partners) - max(partner["begin"][number] for partner in partners)
        for number in range(len(own["begin"]))
    ]
    times = len(lasted) // len(own["following"])
    return [statistics.fmean(lasted[first : first + times]) for first in range(0, len(lasted), times)]


def _compute(seconds: float) -> None:
    """Multiply matrices for `seconds` CPU seconds of this thread."""
    until, matrix = time.thread_time() + seconds, torch.ones(128, 128)
    while time.thread_time() < until:
        torch.mm(matrix, matrix)


class _Way:
    """Operations of one kind, in which some or all nodes take part.

    Attributes:
        members, size: as in `_Found`; a node without `members` has no partner.
    """

    members: list[int]
    size: tuple[float, float]

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    def start(self, size: int) -> Callable[[], object]:
        """Start an operation with a tensor of `size` bytes; returns a function that waits for its end."""
        raise NotImplementedError

    def row(self, size: int, count: int) -> None:
        """Do `count` operations, the next as soon as it may follow."""
        for _ in range(count):
            self.start(size)()


class _AllReduces(_Way):
    """All-reduces by gloo, on a ring."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        nodes = fabric.world_size
        self.members, self.size = list(range(nodes)), (2 * (nodes - 1), 1 / nodes)

    def start(self, size: int) -> Callable[[], object]:
        return self._fabric.all_reduce_mean_async(torch.zeros(size // 4), "measuring").wait


class _Gathers(_Way):
    """All-gathers over the transport: in every turn, each node sends its tensor to another."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.members, self.size = list(range(fabric.world_size)), (fabric.world_size - 1, 1.0)

    def start(self, size: int) -> Callable[[], object]:
        mine = torch.zeros(size // 4)
        parts = torch.empty(len(mine) * self._fabric.world_size)
        return self._fabric.all_gather_async(parts, mine, "measuring").wait


class _Pairs(_Way):
    """Operations between two nodes; the last of an odd number has no partner."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self._partner = fabric.rank ^ 1
        here = self._partner < fabric.world_size
        self.members, self.size = [fabric.rank, self._partner] if here else [], (1, 1.0)


class _Transfers(_Pairs):
    """Direct transfers by gloo."""

    def start(self, size: int) -> Callable[[], object]:
        mine = torch.zeros(size, dtype=torch.uint8)
        theirs = torch.empty_like(mine)
        return lambda: self._fabric.exchange({self._partner: mine}, {self._partner: theirs}, "measuring")


class _Messages(_Pairs):
    """Messages over the transport, counted on arrival."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self._received = self._expected = 0
        self._places = {size: memoryview(bytearray(size)) for size in (_SMALL, _LARGE)}
        self._channel = fabric.transport.open(self)

    def buffer(self, peer: int, key: int) -> memoryview:
        return self._places[key]

    def arrived(self, peer: int, key: int, size: int) -> bool:
        self._received += 1
        return self._received >= self._expected

    def row(self, size: int, count: int) -> None:
        self.start(size, count)()

    def start(self, size: int, count: int = 1) -> Callable[[], object]:
        with self._fabric.transport.lock:
            self._expected += count
        payload = memoryview(bytearray(size))
        self._fabric.transport.send(self._partner, [TransportMessage(self._channel, 0, size, payload)] * count)
        return lambda: self._fabric.wait_for_messages(
            lambda: self._received >= self._expected, lambda: {self._partner}, "measuring"
        )


_WAYS: dict[str, type[_Way]] = {
    "all_reduce": _AllReduces,
    "transfer": _Transfers,
    "transport": _Messages,
    "in_turns": _Gathers,
}
