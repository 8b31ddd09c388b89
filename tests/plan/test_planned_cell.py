"""The planned trace of a cell: a short sample, repeated, is as long as a long one."""

import dataclasses

import numpy as np
import pytest

from istbench.base.options.run import RunRequest
from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import TraceMeta
from istbench.plan.planned_cell import PlannedCell

STEPS = 24
FREE = {"cpu_s_per_byte": 0.0, "cpu_s_per_message": 0.0}
SLOW = dataclasses.replace(load_profile("m5.2xlarge"), **FREE).with_bandwidth(5e6)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ddp", {}),
        ("local_sgd", {"local_steps": 2}),
        ("p3", {}),
        ("parameter_server", {}),
        ("streaming_diloco", {"local_steps": 4, "fragments": 2, "delay": 2}),
        ("streaming_diloco", {"local_steps": 4, "fragments": 2, "delay": 2, "send": "int8"}),
        ("zero", {}),
        ("streaming_ist", {"local_steps": 2}),
    ],
)
def test_a_repeated_sample_waits_for_the_messages_of_the_one_before(method, options):
    request = RunRequest(
        workload="toy", workload_options={"hidden": 256}, method=method, method_options=options, nodes=3
    )
    cell = PlannedCell.of(request, recorded=True)
    meta = TraceMeta(nodes=3, gflops=100.0)
    ends = []
    for least_steps in (1, STEPS):
        trace = cell.trace(meta, 0.01, least_steps)
        found = replay(trace, SLOW, rounds=STEPS // trace.round_steps, compute_scale=1.0)
        ends.append(found.finish_s[:, found.mark_kind == 0][:, :STEPS])
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
    assert np.all(np.diff(ends[0][0]) > 0)
