"""K and L chosen from data: the size of active sets comes out as wanted."""

import numpy as np
import pytest
from slide_problems import labels_of, normal

from istbench.methods.slide.active import active_sets
from istbench.methods.slide.choosing import choose
from istbench.methods.slide.dwta import DWTA
from istbench.methods.slide.hashing import Tables
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.threads import Threads

ONE = Threads(1)
WEIGHT, HIDDEN = normal(3000, 32), np.maximum(normal(48, 32, seed=1), 0)


def measured(kind, functions, tables, seeds):
    """The size of active sets by such tables, on average over samples and drawn functions."""
    sizes = []
    for seed in seeds:
        family = kind(32, functions, tables, seed)
        built = Tables.build(family, WEIGHT, ONE)
        nobody = labels_of([[] for _ in HIDDEN])
        sets = active_sets(nobody, 3000, ONE, tables=built, codes=family.codes(HIDDEN, ONE))
        sizes.append(sets.sizes.mean())
    return np.mean(sizes)


@pytest.mark.parametrize("kind", [SimHash, DWTA])
@pytest.mark.parametrize("target", [60, 700])
def test_the_chosen_tables_make_about_as_many_rows_active(kind, target):
    choice = choose(kind, WEIGHT, HIDDEN, target, ONE, seed=3, most_tables=20)
    assert choice.active == pytest.approx(target, rel=0.15)
    assert measured(kind, choice.functions, choice.tables, [3]) == pytest.approx(choice.active, rel=0.02)
    assert measured(kind, choice.functions, choice.tables, range(12)) == pytest.approx(target, rel=0.3)


def test_the_largest_k_that_tables_allow_is_taken():
    few = choose(SimHash, WEIGHT, HIDDEN, 60, ONE, seed=3, most_tables=5)
    many = choose(SimHash, WEIGHT, HIDDEN, 60, ONE, seed=3, most_tables=40)
    assert few.functions < many.functions
    assert few.tables <= 5 < many.tables


def test_all_rows_are_one_bucket():
    assert choose(DWTA, WEIGHT, HIDDEN, 3000, ONE, seed=0).functions == 0
