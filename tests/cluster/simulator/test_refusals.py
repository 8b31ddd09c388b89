"""What cannot be replayed is said, in a line."""

import pytest
from traces import cluster, same, trace

from istbench.base.errors import UserError
from istbench.cluster.simulator import replay


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
