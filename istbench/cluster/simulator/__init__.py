"""Simulation of a trace on a cluster profile. Numba compiles it; only the first replay imports Numba."""

from istbench.cluster.simulator.run import Replay, Span, replay

__all__ = ["Replay", "Span", "replay"]
