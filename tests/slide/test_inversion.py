"""Pairs by row are the active sets turned round."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from slide_problems import labels_of, sets_of

from istbench.slide.inversion import BLOCKS, inverted

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
