"""An extreme classifier evaluated block by block, beside the same one evaluated whole."""

import pytest
import torch

from istbench.studies.conformance.training import initial_model
from istbench.workloads.amazon670k import Amazon670k, Amazon670kOptions
from istbench.workloads.contract import blank_model
from istbench.workloads.extreme_evaluation import metrics_by_blocks, network_metrics


@pytest.mark.parametrize(("hidden", "block"), [(7, 13), (33, 64), (16, 5_000)])
@pytest.mark.parametrize("most_hidden", [1, 1 << 20])
def test_blocks_give_the_metrics_of_the_whole(tmp_path, no_progress, hidden, block, most_hidden):
    options = Amazon670kOptions(hidden=hidden, block=block, points=7_000, features=95, labels=150)
    workload = Amazon670k(options)
    workload.open(workload.prepare(None, tmp_path, no_progress))
    blank, network = blank_model(workload), initial_model(workload, 3)
    largest, read = 0, {name: torch.zeros(tensor.shape) for name, tensor in network.named_parameters()}

    def from_elsewhere(name, dim, first, last):
        nonlocal largest
        values = network.get_parameter(name).narrow(dim, first, last - first).detach().clone()
        largest = max(largest, values.numel())
        read[name].narrow(dim, first, last - first).add_(1)
        return values

    with torch.no_grad():
        weights = 1 + torch.rand(150, dtype=torch.float64)
        whole = workload.evaluate(network, workload.test_batches())
        wanted = network_metrics(network, workload.test_batches(), weights)
        found = metrics_by_blocks(blank, from_elsewhere, workload.test_batches(), weights, most_hidden=most_hidden)
    assert found == wanted
    assert largest <= max(min(block, 150) * hidden, 150)
    # 1,400 test points come in two batches, each of which needs a pass where no more hidden layers are kept.
    assert all((times == (2 if most_hidden == 1 else 1)).all() for times in read.values())
    assert workload.evaluate_blocks(from_elsewhere, workload.test_batches()) == whole
