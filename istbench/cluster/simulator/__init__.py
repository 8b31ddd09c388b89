"""Simulation of a trace on a cluster profile. Numba compiles it; only the first replay imports Numba."""

from istbench.cluster.simulator.outcome import Replay, Span
from istbench.cluster.simulator.run import replay

__all__ = ["Replay", "Span", "replay"]
