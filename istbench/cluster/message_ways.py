"""The costs of the messages in a trace, by the way that each of them takes between nodes."""

import math

import msgspec
import numpy as np

from istbench.cluster.collectives import COLLECTIVES, bytes_on_wire
from istbench.cluster.profile import MessageCosts
from istbench.cluster.trace import POST, SEND, Trace


class MessageWays(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a message by its way: gloo's collectives, its direct transfers, and the fabric's transport.

    The transport carries a method's own sends, and all-gathers and reduce-scatters.
    """

    all_reduce: MessageCosts
    transfer: MessageCosts
    transport: MessageCosts
    in_turns: MessageCosts

    def of(self, trace: Trace) -> MessageCosts:
        """The costs of the messages in `trace`: where they take several ways, means over messages and over bytes.

        In a trace without the transport, the process group carried all of them.
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
                way = "in_turns" if trace.meta.transport and collective.in_turns else "all_reduce"
                rows = collective.schedule(n)
                sent = sum(bytes_on_wire(collective.name, int(own.sum()), n, place)[0] for place in range(n))
                amounts = len(own) * sum(map(len, rows)) / len(rows), sent / n
            else:
                continue
            before = found.get(way, (0.0, 0.0))
            found[way] = before[0] + amounts[0], before[1] + amounts[1]
        return [(getattr(self, way), *sums) for way, sums in found.items() if sums[0]]
