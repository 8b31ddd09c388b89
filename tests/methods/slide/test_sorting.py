"""Counting sort: a stable sort."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from istbench.methods.slide.hashing import sort_by_code

BUCKETS = 8
CODES = arrays.arrays(np.int32, st.integers(0, 60), elements=st.integers(0, BUCKETS - 1))


@settings(max_examples=60, deadline=None)
@given(CODES)
def test_rows_are_sorted_by_code_and_stay_in_order_within_one(codes):
    starts, rows = np.empty(BUCKETS + 1, np.int32), np.empty(len(codes), np.int32)
    sort_by_code(codes, starts, rows)
    np.testing.assert_array_equal(rows, np.argsort(codes, kind="stable"))
    np.testing.assert_array_equal(starts, np.searchsorted(np.sort(codes), np.arange(BUCKETS + 1)))
