"""The cells that `compare --controls` adds."""

import msgspec
import pytest

from istbench.base.options.run import RunRequest
from istbench.base.options.shares import Shares
from istbench.cluster.profile import load_profile
from istbench.launch.cells.controls import at_equal_cost, on_few_nodes, one_machine
from istbench.methods.footprint import tensor_bytes
from istbench.node.registry import build_workload
from istbench.plan.planner import make_plan
from istbench.workloads.contract import blank_model


def request(method, *, nodes=2, seed=0, workload="speech", hidden=512, **options):
    given = {} if hidden is None else {"hidden": hidden}
    return RunRequest(
        workload=workload, method=method, nodes=nodes, seed=seed, workload_options=given, method_options=options
    )


def test_each_seed_has_its_controls():
    methods = ("ist", "local_sgd", "ddp", "p3")
    asked = [
        request(method, nodes=nodes, seed=seed) for seed in (0, 1) for nodes in (1, 2, 4) for method in methods
    ]
    found, lacking = at_equal_cost(asked)
    assert not lacking
    expected = [
        own
        for seed in (0, 1)
        for nodes in (2, 4)
        for own in (
            request("local_sgd", nodes=nodes, seed=seed, hidden=512 // nodes),
            request("ddp", nodes=nodes, seed=seed, hidden=512 // nodes),
            request("ddp", nodes=nodes, seed=seed, accumulate=20),
        )
    ]
    assert [control.request for control in found] == expected
    assert [control.purpose for control in found[:3]] == [
        "local_sgd on 2 nodes with hidden=256: the width of a subnet of ist",
        "ddp on 2 nodes with hidden=256: the width of a subnet of ist",
        "ddp on 2 nodes with accumulate=20: the bytes of local_sgd",
    ]


def test_a_control_on_one_node_has_no_groups_of_nodes():
    (control,) = on_few_nodes([request("diloco", nodes=4, group=2, local_steps=10)])
    assert control.request == request("diloco", nodes=1, local_steps=10)


def test_one_machine_is_a_control_of_every_seed_and_width():
    asked = [
        request("ist"), request("ddp", lr=0.3), request("ddp", nodes=4, lr=0.3), request("ddp", accumulate=4),
        request("ist", seed=1, local_steps=3), request("local_sgd", hidden=64),
        request("ddp", hidden=64, compress="bf16"), request("ddp", nodes=1, hidden=32),
    ]  # fmt: skip
    found = one_machine(asked)
    assert [control.request for control in found] == [
        request("ddp", nodes=1, lr=0.3),
        request("ddp", nodes=1, lr=0.3),
        request("ddp", nodes=1, seed=1),
        request("ddp", nodes=1, hidden=64),
    ]
    assert found[0].purpose == "ddp on 1 node, to see if one machine is enough"


def test_a_control_keeps_the_settings_of_its_method_and_takes_those_of_the_subnets():
    asked = [
        request("ist", nodes=4, coverage="2"),
        request("ist", nodes=4, deal="late"),
        request("ddp", nodes=4, lr=0.3),
        request("ddp", nodes=4, hidden=100),
        request("diloco", nodes=4, local_steps="7"),
        request("streaming_diloco", nodes=4, send="int8"),
        request("local_sgd", nodes=4, ddp_rounds=2),
        request("noloco", nodes=4),
        request("sparseloco", nodes=4),
        request("ddp", nodes=4, accumulate=3),
        request("ddp", nodes=4, hidden=100, compress="bf16"),
        request("diloco", nodes=4, hidden=100, local_steps=9),
        request("ddp", nodes=4, hidden=200, accumulate="1"),
        request("diloco", nodes=4, hidden=200, local_steps=9),
        request("zero", nodes=4),
    ]
    found, lacking = at_equal_cost(asked)
    assert not lacking
    assert [control.request for control in found] == [
        request("ddp", nodes=4, hidden=256, lr=0.3),
        request("local_sgd", nodes=4, hidden=256, ddp_rounds=2),
        request("ddp", nodes=4, hidden=256, accumulate=3),
        request("ddp", nodes=4, lr=0.3, accumulate=7),
        request("ddp", nodes=4, hidden=100, accumulate=9),
        request("ddp", nodes=4, hidden=200, accumulate=9),
    ]


@pytest.mark.parametrize("method", ["local_sgd", "diloco", "streaming_diloco"])
@pytest.mark.parametrize("workload", ["speech", "text"])
def test_accumulation_sends_the_bytes_of_the_method(method, workload):
    """But for the buffers, such as the statistics of BatchNorm: `ddp` sends none, and their share is small."""
    sizes = {"speech": {"hidden": 512}, "text": {"width": 32, "layers": 2}}[workload]
    asked = [RunRequest(workload=workload, method=own, nodes=4, workload_options=sizes) for own in (method, "ddp")]
    (control,) = at_equal_cost(asked)[0]
    plans = [make_plan(own, load_profile("m5.2xlarge"), limits=False) for own in (asked[0], control.request)]
    assert plans[0].round_steps == plans[1].round_steps
    theirs, ours = (plan.sent for plan in plans)
    model = blank_model(build_workload(workload, sizes), data_known=False)
    buffers = tensor_bytes(buffer for buffer in model.buffers() if buffer.is_floating_point())
    assert (buffers > 0) == (workload == "speech")
    assert theirs - ours == pytest.approx(2 * 3 / 4 * buffers, abs=64)


def test_a_workload_without_a_narrower_model_says_so(tmp_path):
    cut = [request(method, workload="translation", hidden=None) for method in ("ist", "ddp")]
    found, (line,) = at_equal_cost(cut)
    assert not found
    assert line.startswith("no control at the width of a subnet of ist: workload 'translation' has no option")


def test_a_request_that_cannot_be_built_has_no_controls():
    assert at_equal_cost([request("ist", workload="none"), request("ist", lr="high"), request("ddp")]) == ([], [])


def test_controls_on_other_nodes_have_no_shares():
    shared = msgspec.structs.replace(request("diloco"), shares=Shares((1, 0.5)))
    for control in (*on_few_nodes([shared]), *one_machine([shared])):
        assert (control.request.nodes, control.request.shares) == (1, None)
    plain = msgspec.structs.replace(request("ddp"), shares=Shares((1, 0.5)))
    assert [control.request for control in one_machine([plain])] == [request("ddp", nodes=1)]
