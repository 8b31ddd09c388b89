"""Checks of a workload that breaks the contract."""

import pytest

from istbench.conformance.of_workloads import DoesNotHold, shares_of_the_samples_give_the_metrics_of_all
from istbench.conformance.training import open_workload


def test_metrics_that_are_no_means_are_caught():
    workload = open_workload("toy", {})
    workload.evaluate = lambda model, batches: {"accuracy": sum(len(labels) for _, labels in batches)}
    with pytest.raises(DoesNotHold, match="accuracy of a third and the rest of a batch comes to"):
        shares_of_the_samples_give_the_metrics_of_all(workload)
