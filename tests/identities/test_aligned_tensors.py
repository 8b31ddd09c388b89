"""Methods whose tensors lie in flat buffers train the same model with the alignment of a GPU, on gloo processes."""

import pytest

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods import flat
from istbench.studies.conformance.training import assembled, largest_difference, open_workload, set_up, train

METHODS = {
    "local_sgd": {"average_optimizer": True, "momentum": 0.9},
    "diloco": {},
    "streaming_diloco": {"fragments": 2, "delay": 1},
    "noloco": {},
    "ist": {"deal": "all"},
}
ROUND, STEPS = 4, 10  # the last round stays open


def node_of_method(fabric, method):
    """The largest difference between a model trained with and without alignment, on rank 0."""
    workload, models = open_workload("toy", {"hidden": 13, "layers": 3, "classes": 5, "batch_norm": True}), []
    for devices in ((), ("cpu",)):
        flat._ALIGNED_ON = devices
        trained = set_up(fabric, workload, method, {"local_steps": ROUND, **METHODS[method]})
        train(fabric, workload, trained, 0, STEPS)
        models.append(assembled(fabric, trained))
    return None if models[0] is None else largest_difference(*models)


@pytest.mark.processes
@pytest.mark.parametrize("method", METHODS)
def test_alignment_changes_no_weight(method):
    assert on_nodes(node_of_method, 2, method)[0] == 0
