"""Checks that every method and workload must pass, built-in or plug-in, on real processes."""

from istbench.conformance.check import Outcome, check_method, check_workload

__all__ = ["Outcome", "check_method", "check_workload"]
