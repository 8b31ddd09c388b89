"""A run that is dealt to other nodes, beside a run on as many nodes."""

import subprocess
import sys

import pytest

from istbench.cluster.clock import cluster_time
from istbench.cluster.estimate import bytes_sent
from istbench.cluster.profile import load_profile
from istbench.cluster.trace_file import load_trace
from istbench.errors import UserError
from istbench.plan.redeal import redeal
from istbench.results.load import load_runs

SLOW = load_profile("home-100mbit")


def recorded(method, nodes, out):
    """A run of 40 steps on the toy workload, and its trace."""
    command = [sys.executable, "-m", "istbench", "run", "--method", method, "--workload", "toy", "--nodes", nodes]
    options = ["--steps", 40, "--workload-set", "hidden=512", "--out", out / str(nodes)]
    subprocess.run([str(word) for word in command + options], check=True, capture_output=True)
    (run,), _ = load_runs(out / str(nodes))
    return run, load_trace(run.directory.trace)


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "ist", "p3"])
def test_two_nodes_dealt_to_four_are_the_run_on_four(method, tmp_path):
    (run, trace), (there, on_four) = (recorded(method, nodes, tmp_path) for nodes in (2, 4))
    dealt_run, dealt = redeal(run, trace, 4)
    assert dealt_run.extrapolated_from == 2
    sent, really = (bytes_sent(found.nodes[0], 4) / found.steps for found in (dealt, on_four))
    assert sent == pytest.approx(really, rel=0.02 if method == "ist" else 1e-9)
    assert dealt_run.header.result.bytes_sent_per_node == pytest.approx(
        there.header.result.bytes_sent_per_node, rel=0.02 if method == "ist" else 1e-9
    )
    seconds, expected = (cluster_time(found, SLOW, [40]).seconds[0] for found in (dealt, on_four))
    assert seconds == pytest.approx(expected, rel=0.08)
    many_run, many = redeal(run, trace, 6)
    assert (many.world_size, many_run.header.nodes) == (6, 6)


def test_a_run_that_sent_other_bytes_than_its_plan_is_refused(tmp_path):
    run, trace = recorded("local_sgd", 2, tmp_path)
    for events in trace.nodes:
        events["bytes"] //= 2
    with pytest.raises(UserError, match="cannot be dealt to other nodes"):
        redeal(run, trace, 4)
