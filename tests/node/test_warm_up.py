"""The steps before the clock starts. Functions named `node_*` run on every node."""

import pytest

from istbench.cells.resolve import prepare_cell
from istbench.config.run import RunRequest
from istbench.conformance.training import open_workload
from istbench.methods.ist import IndependentSubnetTraining
from istbench.node.setup import warm_up
from istbench.processes.on_nodes import on_nodes


def node_warmed(fabric, warmup_rounds):
    """The values of a matrix in each step of the warm-up, and in the step that was counted."""
    request = RunRequest(
        workload="toy",
        method="ist",
        nodes=2,
        steps=40,
        method_options={"warmup_rounds": warmup_rounds},
        threads=1,
    )
    config = prepare_cell(request, lambda *_: None).config
    seen, step = [], IndependentSubnetTraining.step

    def noted(method, batch):
        seen.append(method._subnet.linear2.weight.numel())
        return step(method, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndependentSubnetTraining, "step", noted)
        counted = warm_up(config, open_workload("toy", {}), fabric)
    return seen, counted.work.operations


def test_the_whole_model_of_a_warm_up_is_warm_too_and_the_counted_step_is_a_later_one():
    (without, operations), (warm, same) = (on_nodes(node_warmed, 2, rounds)[0] for rounds in (0, 3))
    assert (without, warm) == ([8 * 8], [16 * 16, 8 * 8])
    assert same == operations
