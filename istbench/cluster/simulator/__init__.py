"""The simulation of a trace on a cluster profile. Numba compiles it, and is imported by the first replay only."""

from istbench.cluster.simulator.outcome import Replay, Span
from istbench.cluster.simulator.run import replay

__all__ = ["Replay", "Span", "replay"]
