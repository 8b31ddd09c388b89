"""Rows that are large for all samples: those of the mean hidden vector."""

import numpy as np
from slide_problems import normal

from istbench.methods.slide.index import common_rows, largest
from istbench.methods.slide.threads import Threads

WEIGHT, BIAS, HIDDEN = normal(1000, 16), normal(1000, seed=1), normal(9, 16, seed=2)


def test_common_rows_have_the_largest_outputs_for_the_mean_hidden_vector():
    wanted = np.argsort(-(HIDDEN @ WEIGHT.T + BIAS).mean(axis=0))
    for count in (0, 1, 50, 1000, 2000):
        rows = common_rows(WEIGHT, BIAS, HIDDEN, count, Threads(1))
        assert rows.dtype == np.int32
        assert rows.tolist() == sorted(wanted[:count].tolist())


def test_threads_do_not_matter():
    two = Threads(2)
    one, other = (common_rows(WEIGHT, BIAS, HIDDEN, 300, threads) for threads in (Threads(1), two))
    np.testing.assert_array_equal(one, other)


def test_the_largest_in_order_and_the_first_of_equals():
    values = np.array([0, 3, 1, 3, 9, 1, 0], np.float32)
    assert largest(values, 4).tolist() == [1, 2, 3, 4]
    assert largest(values, 1).tolist() == [4]
    assert largest(values, 2).tolist() == [1, 4]
    assert largest(values, 0).tolist() == []
    assert largest(values, 99).tolist() == list(range(7))
