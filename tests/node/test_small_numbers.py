"""Nodes take numbers that a processor computes slowly as zeros."""

import threading

import torch

from istbench.node.worker import compute_on


def test_numbers_below_the_normal_ones_are_zeros_in_this_thread_and_those_that_it_starts():
    products = {}

    def compute(name):
        products[name] = (torch.full((100_000,), 1e-39) * 1).count_nonzero().item()

    def train():
        compute_on(torch.get_num_threads())
        compute("training")
        beside = threading.Thread(target=compute, args=("beside",))
        beside.start()
        beside.join()

    compute("before")
    trains = threading.Thread(target=train)  # the setting is a thread's own
    trains.start()
    trains.join()
    assert products == {"before": 100_000, "training": 0, "beside": 0}
