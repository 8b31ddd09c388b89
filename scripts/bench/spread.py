"""A median with its range, in the tables of the measurements."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int) -> str:
    """The median and the range of `values`: `1.04 [1.02-1.07]`."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} [{least:.{digits}f}-{most:.{digits}f}]"
