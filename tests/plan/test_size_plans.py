"""Plans from sizes alone, beside the plans of the methods themselves."""

import subprocess
import sys

import numpy as np
import pytest

from istbench.base.errors import UserError
from istbench.methods.size_plans import SIZE_PLANS
from istbench.plan.numbers import Numbers, record_of
from istbench.plan.script_time import chosen_methods, size_trace
from istbench.plan.script_trace import script_trace

RECORD = record_of(Numbers(parameters=6_400_003, step_s=0.22, nodes=3))
OPTIONS = (
    "ddp accumulate=4", "ddp compress=bf16", "zero accumulate=2", "local_sgd local_steps=3", "diloco local_steps=8",
    "streaming_diloco local_steps=12 fragments=3 delay=1 send=int8", "sparseloco chunk=64 top=4",
    "p3 slice_params=200000 window=1", "p3 priority=false", "fsdp group_params=200000",
)  # fmt: skip


@pytest.mark.parametrize("method", [*SIZE_PLANS, *OPTIONS])
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_plan_from_sizes_is_the_plan_of_the_method(method, nodes):
    (typed,) = chosen_methods([method])
    planned = script_trace(RECORD, typed, nodes)
    trace = size_trace(RECORD, typed, nodes)
    assert trace.meta == planned.meta
    assert len(trace.nodes) == len(planned.nodes)
    for events, own in zip(trace.nodes, planned.nodes, strict=True):
        assert np.array_equal(events, own)


@pytest.mark.parametrize(
    "method",
    [
        "ist", "ddp lr=0.1", "ddp accumulate=0", "local_sgd local_steps=x", "ddp compress=int8",
        "zero compress=float32", "streaming_diloco send=fp16", "sparseloco top=8192", "sparseloco chunk=100000",
        "p3 priority=false window=1", "streaming_diloco fragments=3", "streaming_diloco fragments=20",
    ],
)  # fmt: skip
def test_other_methods_and_options_need_their_own_plan(method):
    assert size_trace(RECORD, *chosen_methods([method]), 2) is None


@pytest.mark.parametrize(
    ("nodes", "method", "line"),
    [
        (
            6,
            "p3",
            r"10,000,000,000,000 parameters in 200,000,000 slices of slice_params=50000 on 6 nodes.*'p3 slice",
        ),
        (256, "p3 slice_params=9", "1,111,111,111,120 slices of slice_params=9"),
        (2, "local_sgd local_steps=1000000000000", "local_sgd has 1,000,000,000,000 local steps.*name fewer"),
    ],
)
def test_too_many_parts_of_a_large_model_are_refused_before_they_are_listed(nodes, method, line):
    record = record_of(Numbers(parameters=10**13, step_s=1.0, nodes=nodes))
    with pytest.raises(UserError, match=line):
        size_trace(record, *chosen_methods([method]), nodes)


def test_the_slices_that_a_refusal_names_are_few_enough():
    record = record_of(Numbers(parameters=10**13, step_s=1.0, nodes=6))
    with pytest.raises(UserError) as refused:
        size_trace(record, *chosen_methods(["p3"]), 6)
    named = str(refused.value).split("'")[1]
    assert len(size_trace(record, *chosen_methods([named]), 6).nodes[0])


@pytest.mark.processes
def test_plans_from_sizes_need_no_torch():
    code = "import sys, istbench.plan.numbers, istbench.plan.script_time; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
