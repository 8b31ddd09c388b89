"""Plans from sizes alone, beside the plans of the methods themselves."""

import subprocess
import sys

import numpy as np
import pytest

from istbench.plan.numbers import Numbers, record_of
from istbench.plan.script_time import chosen_methods
from istbench.plan.script_trace import script_trace
from istbench.plan.size_rounds import SIZE_METHODS, size_trace, sized

RECORD = record_of(Numbers(parameters=6_400_003, step_s=0.22, nodes=3))
OPTIONS = (
    "ddp accumulate=4", "ddp compress=bf16", "zero accumulate=2", "local_sgd local_steps=3", "diloco local_steps=8",
    "streaming_diloco local_steps=12 fragments=3 delay=1 send=int8", "sparseloco chunk=64 top=4",
    "p3 slice_params=200000 window=1", "p3 priority=false", "fsdp group_params=200000",
)  # fmt: skip


@pytest.mark.parametrize("method", [*SIZE_METHODS, *OPTIONS])
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_plan_from_sizes_is_the_plan_of_the_method(method, nodes):
    (typed,) = chosen_methods([method])
    planned = script_trace(RECORD, typed, nodes)
    trace = size_trace(RECORD, sized(typed), nodes)
    assert trace.meta == planned.meta
    assert len(trace.nodes) == len(planned.nodes)
    for events, own in zip(trace.nodes, planned.nodes, strict=True):
        assert np.array_equal(events, own)


@pytest.mark.parametrize("method", ["ist", "ddp lr=0.1", "ddp accumulate=0", "local_sgd local_steps=x"])
def test_other_methods_and_options_need_their_own_plan(method):
    assert sized(chosen_methods([method])[0]) is None


@pytest.mark.processes
def test_plans_from_sizes_need_no_torch():
    code = "import sys, istbench.plan.numbers, istbench.plan.size_rounds; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
