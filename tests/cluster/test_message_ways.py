"""Which costs of messages a replay takes, by what the trace posts."""

import pytest

from istbench.cluster.message_ways import MessageWays
from istbench.cluster.profile import MessageCosts
from istbench.cluster.trace_builder import TraceBuilder, merge


def costs(figure):
    return MessageCosts(message_s=figure, next_s=figure, cpu_s_per_message=figure, cpu_s_per_byte=figure)


ALL_REDUCE, TRANSFER, TRANSPORT, IN_TURNS = costs(1.0), costs(10.0), costs(100.0), costs(1000.0)
WAYS = MessageWays(all_reduce=ALL_REDUCE, transfer=TRANSFER, transport=TRANSPORT, in_turns=IN_TURNS)


def trace(*posts, **meta):
    nodes = []
    for rank in range(2):
        builder = TraceBuilder(lambda: 0.0)
        for kind, size in posts:
            if kind == "transfers":
                builder.post("send", size, [1 - rank])
                builder.post("receive", size, [1 - rank])
            else:
                builder.post(kind, size, [0] if kind == "broadcast" else [])
        builder.mark("step")
        nodes.append(builder.to_arrays())
    return merge(nodes, **meta)


@pytest.mark.parametrize(
    ("posts", "transport", "wanted"),
    [
        ((), False, ALL_REDUCE),
        ((("all_reduce", 8), ("broadcast", 8), ("barrier", 0)), False, ALL_REDUCE),
        ((("transfers", 8),), False, TRANSFER),
        ((("transfers", 8),), True, TRANSPORT),
        ((("all_gather", 8), ("reduce_scatter", 8)), True, IN_TURNS),
        ((("all_gather", 8), ("reduce_scatter", 8)), False, ALL_REDUCE),  # of an older istbench, or over NCCL
    ],
)
def test_a_method_with_one_way_has_the_costs_of_that_way(posts, transport, wanted):
    assert WAYS.of(trace(*posts, transport=transport)) == wanted


def test_several_ways_count_by_their_messages_and_bytes():
    # By node: two messages of 300 bytes for the all-reduce, one of 100 for the all-gather and one of 200.
    both = WAYS.of(trace(("all_reduce", 600), ("all_gather", 100), ("transfers", 200), transport=True))
    assert both.message_s == both.next_s == both.cpu_s_per_message == pytest.approx((2 * 1.0 + 1000.0 + 100.0) / 4)
    assert both.cpu_s_per_byte == pytest.approx((600 * 1.0 + 100 * 1000.0 + 200 * 100.0) / 900)
    together = WAYS.of(trace(("all_reduce", 600), ("transfers", 600), transport=False))
    assert together.message_s == pytest.approx((2 * 1.0 + 10.0) / 3)
