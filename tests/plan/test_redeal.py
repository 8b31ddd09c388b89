"""A run that is dealt to other nodes, beside a run on as many nodes."""

import dataclasses
import functools

import msgspec
import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.cluster.clock import cluster_time
from istbench.cluster.estimate import bytes_sent
from istbench.cluster.profile import load_profile
from istbench.cluster.trace_file import load_trace
from istbench.launch.cells.execute import execute
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.local import LocalLauncher
from istbench.plan.redeal import redeal
from istbench.results.load import load_run
from istbench.results.store import RunDirectory

pytestmark = pytest.mark.processes

SLOW = load_profile("home-100mbit").with_bandwidth(1e6)  # computing hardly matters, on a busy machine either


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of a method on some nodes, of 40 steps on the toy workload, and its trace; each trains once."""
    out = tmp_path_factory.mktemp("recorded")

    @functools.cache
    def trained(method, nodes):
        request = RunRequest(
            workload="toy",
            method=method,
            nodes=nodes,
            steps=40,
            eval_every=8,
            workload_options={"hidden": 512},
            threads=1,
        )
        cell = prepare_cell(request, lambda *_: None)
        directory = RunDirectory.of(out, cell.cell)
        execute(cell, directory, out / "scratch", LocalLauncher())
        return directory

    def found(method, nodes):
        directory = trained(method, nodes)
        return load_run(directory), load_trace(directory.trace)

    return found


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "ist", "p3"])
def test_two_nodes_dealt_to_four_are_the_run_on_four(method, recorded):
    (run, trace), (there, on_four) = (recorded(method, nodes) for nodes in (2, 4))
    dealt_run, dealt = redeal(run, trace, 4)
    assert dealt_run.extrapolated_from == 2
    sent, really = (bytes_sent(found.nodes[0], 4) / found.steps for found in (dealt, on_four))
    assert sent == pytest.approx(really, rel=0.02 if method == "ist" else 1e-9)
    assert dealt_run.header.result.bytes_sent_per_node == pytest.approx(
        there.header.result.bytes_sent_per_node, rel=0.02 if method == "ist" else 1e-9
    )
    for at, there_at in zip(dealt_run.curve.evaluations, there.curve.evaluations, strict=True):
        assert (at.step, at.samples) == (there_at.step, there_at.samples)
        for name in ("bytes_sent_per_node", "bytes_received_per_node"):
            rel = 0.02 if method == "ist" else 1e-9
            assert getattr(at, name) == pytest.approx(getattr(there_at, name), rel=rel), (at.step, name)
    seconds, expected = (cluster_time(found, SLOW, [40]).seconds[0] for found in (dealt, on_four))
    assert seconds == pytest.approx(expected, rel=0.05)
    # Some of four servers have more slices than others.
    many_run, many = redeal(there, on_four, 6)
    assert (many.world_size, many_run.header.nodes) == (6, 6)


def test_steps_of_a_warm_up_are_counted_for_the_nodes_that_have_one(recorded):
    run, trace = recorded("ist", 2)
    config = run.header.config
    options = {**config.method_options, "warmup_rounds": 3}
    config = msgspec.structs.replace(config, method_options=options)
    warm = dataclasses.replace(run, header=msgspec.structs.replace(run.header, config=config))
    unlike = [redeal(warm, trace, nodes)[1].meta.unlike_steps for nodes in (4, 1)]
    assert unlike == [3 * trace.round_steps, 0]


def test_a_run_that_sent_other_bytes_than_its_plan_is_refused(recorded):
    run, trace = recorded("local_sgd", 2)
    for events in trace.nodes:
        events["bytes"] //= 2
    with pytest.raises(UserError, match="cannot be dealt to other nodes"):
        redeal(run, trace, 4)
