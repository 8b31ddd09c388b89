"""Pairs by row are the active sets turned round."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from slide_problems import labels_of, sets_of

from istbench.methods.slide.active import BLOCKS, ActiveSets, inverted

SIZE = 12
ROWS = st.lists(st.permutations(range(SIZE)).flatmap(lambda rows: st.integers(0, SIZE).map(lambda n: rows[:n])))


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_pairs_are_by_row_and_by_sample_within_one(rows, data):
    true = [own[: data.draw(st.integers(0, len(own)))] for own in rows]
    pairs = inverted(sets_of(rows), labels_of(true), SIZE)
    wanted = sorted((row, sample) for sample, own in enumerate(rows) for row in own)
    of_pairs = np.repeat(pairs.rows, np.diff(pairs.starts))
    assert list(zip(of_pairs.tolist(), pairs.samples.tolist(), strict=True)) == wanted
    assert (np.diff(pairs.starts) > 0).all()
    labels = [(row, sample) for sample, own in enumerate(true) for row in own]
    assert [wanted[pair] for pair in pairs.true] == labels
    assert (pairs.edges[0], pairs.edges[-1], len(pairs.edges)) == (0, len(pairs.rows), BLOCKS + 1)
    assert (np.diff(pairs.edges) >= 0).all()
    assert not pairs.logs.any()


def test_random_rows_alone_stand_for_more_than_themselves():
    sets = ActiveSets(
        np.array([3, 5]), np.array([7, 2, 4, 4, 7], np.int32), np.array([2, 1]), np.array([1.5, 2.5], np.float32)
    )
    pairs = inverted(sets, labels_of([[7], []]), SIZE)
    assert np.repeat(pairs.rows, np.diff(pairs.starts)).tolist() == [2, 4, 4, 7, 7]
    assert pairs.samples.tolist() == [0, 0, 1, 0, 1]
    assert pairs.logs.tolist() == [0, 1.5, 0, 0, 2.5]
