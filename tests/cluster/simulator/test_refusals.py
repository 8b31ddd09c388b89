"""What cannot be replayed is said, in a line."""

import dataclasses

import pytest
from traces import blocking, cluster, same, trace

from istbench.base.errors import UserError
from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.simulator import replay
from istbench.cluster.trace import KINDS, POST


def test_nodes_that_wait_in_a_circle_are_named():
    programs = [
        [("post", "receive", 1, (other,)), ("wait", 0), ("post", "send", 1, (other,)), ("mark", "step")]
        for other in (1, 0)
    ]
    with pytest.raises(UserError, match=r"node 0 waits for operation 0 \(receive from node 1\), which never ends"):
        replay(trace(*programs), cluster())


def test_a_wait_after_the_last_mark_that_never_ends_is_noticed():
    """Each node's receive comes after its send, and each send needs the other's receive."""
    programs = [
        [
            ("mark", "step"),
            ("post", "send", 1, (other,)),
            ("post", "receive", 1, (other,), 0, (0,)),
            ("wait", 0),
        ]
        for other in (1, 0)
    ]
    with pytest.raises(UserError, match=r"node 0 waits for operation 0 \(send to node 1\), which never ends"):
        replay(trace(*programs), cluster())


def test_what_cannot_be_replayed_is_said():
    work = same(2, [("compute", 1.0)])
    with pytest.raises(UserError, match="cannot replay 0 rounds; give 1 or more"):
        replay(work, cluster(), rounds=0)
    for wrong in ({"window": 0}, {"streams": 0}, {"compute_scale": -1.0}, {"compute_scale": float("nan")}):
        with pytest.raises(UserError, match=next(iter(wrong)).replace("_", " ")):
            replay(work, cluster(), **wrong)
    with pytest.raises(UserError, match="lacks the speed of the machine .* record it again"):
        replay(same(2, [("compute", 1.0)], gflops=None), cluster())


def changed(work, field, value):
    """`work` with `value` in `field` of every post of node 1, unchecked."""
    events = work.nodes[1].copy()
    events[field][events["code"] == POST] = value
    return dataclasses.replace(work, nodes=(work.nodes[0], events))


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [("code", 9, "node 1 has an event 9"), ("kind", 77, "node 1 posts an operation 77")],
)
def test_what_has_no_rule_is_not_taken_for_something_else(field, value, found):
    work = changed(same(2, blocking("all_reduce", 8)), field, value)
    with pytest.raises(UserError, match=f"{found}, which .* not know; use the istbench that recorded it"):
        replay(work, cluster())


def test_an_unknown_collective_is_refused_before_it_starts(monkeypatch):
    monkeypatch.delitem(COLLECTIVES, KINDS.index("barrier"))
    assert replay(same(2, blocking("all_reduce", 8)), cluster()).seconds > 0
    with pytest.raises(UserError, match=r"node 0 posts a barrier, which .* not know"):
        replay(same(2, [("compute", 1.0), ("mark", "step"), *blocking("barrier")]), cluster())
