"""Whether the nodes of a recorded run had their cores to themselves."""

from typing import TYPE_CHECKING

import numpy as np

from istbench.cluster.trace import COMPUTE, MARK, WAIT, WAIT_BEFORE, round_ends

if TYPE_CHECKING:
    from istbench.cluster.trace import Trace


def without_core(trace: "Trace") -> float:
    """Share of the compute seconds in which a node had no core, in the round of median share.

    An evaluation also takes such seconds, but few rounds have one. A compute span that ends in a wait tells
    nothing: its wall time includes waiting.
    """
    shares = []
    for events in trace.nodes:
        at, code = np.maximum.accumulate(events["at"]), events["code"]
        told = code == COMPUTE
        told[:-1] &= ~np.isin(code[1:], (WAIT, WAIT_BEFORE))
        told[0] = False  # the recording begins inside it
        passed = np.append(0.0, np.diff(at)) * told
        busy = np.minimum(events["seconds"], passed) * told
        marks = np.flatnonzero(code == MARK)
        starts = np.append(0, marks[round_ends(events["kind"][marks])][:-1] + 1)
        all_passed, all_busy = np.add.reduceat(passed, starts), np.add.reduceat(busy, starts)
        shares += [1 - b / p for b, p in zip(all_busy.tolist(), all_passed.tolist(), strict=True) if p > 0]
    return float(np.median(shares)) if shares else 0.0
