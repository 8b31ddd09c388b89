"""Tables: every row once in each, rebuilt in their place, of known bytes."""

import numpy as np
import pytest
from slide_problems import normal

from istbench.methods.slide.dwta import DWTA
from istbench.methods.slide.hashing import Tables, tables_bytes
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.threads import Threads

ONE = Threads(1)


@pytest.mark.parametrize("family", [SimHash(24, 5, 6, seed=1), DWTA(24, 2, 6, seed=1)])
def test_every_row_is_in_one_bucket_of_each_table_by_its_code(family):
    weight = normal(301, 24)
    tables = Tables.build(family, weight, ONE)
    codes = family.codes(weight, ONE)
    for rows, starts, own in zip(tables.rows, tables.starts, codes, strict=True):
        assert sorted(rows) == list(range(301))
        assert (starts[0], starts[-1]) == (0, 301)
        for code in range(family.buckets):
            bucket = rows[starts[code] : starts[code + 1]]
            assert bucket.tolist() == np.flatnonzero(own == code).tolist()


def test_threads_do_not_matter():
    family, weight, two = DWTA(24, 2, 6, seed=1), normal(301, 24), Threads(2)
    one, other = Tables.build(family, weight, ONE), Tables.build(family, weight, two)
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.starts, other.starts)
    two.close()


def test_a_rebuild_with_other_functions_takes_the_same_place():
    weight = normal(50, 24)
    tables = Tables.build(SimHash(24, 5, 3, seed=1), weight, ONE)
    place = tables.rows.ctypes.data
    tables.rebuild(SimHash(24, 5, 3, seed=2), weight, ONE)
    assert tables.rows.ctypes.data == place
    np.testing.assert_array_equal(tables.rows, Tables.build(SimHash(24, 5, 3, seed=2), weight, ONE).rows)


def test_bytes_are_known_before():
    family = DWTA(24, 2, 6, seed=1)
    tables = Tables.build(family, normal(301, 24), ONE)
    assert tables.bytes == tables_bytes(301, family.tables, family.functions, family.bits) == 4 * 6 * (301 + 65)
    # 50 tables over Amazon-670K: 134 MB of rows, and 52 MB to find 2^18 buckets in them.
    assert tables_bytes(670_091, 50, 6, 3) == 134_018_200 + 52_429_000
