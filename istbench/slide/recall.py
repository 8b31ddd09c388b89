"""How many of the largest outputs hashing finds."""

import numpy as np

from istbench.slide.tables import Tables


def found_in_tables(tables: Tables, codes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Whether each of `rows` (int [b, k], a sample's own) is in a bucket of its sample: bool [b, k].

    Bucket limits aside. The mean over a sample's k largest outputs is its recall at k.

    Args:
        codes: int32 [tables, b], of the hidden vectors.
    """
    found = np.zeros(rows.shape, bool)
    places = np.empty(tables.rows.shape[1], np.int32)
    for table, own in enumerate(codes):
        places[tables.rows[table]] = np.arange(len(places), dtype=np.int32)
        place, starts = places[rows], tables.starts[table]
        found |= (place >= starts[own][:, None]) & (place < starts[own + 1][:, None])
    return found
