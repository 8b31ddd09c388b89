"""What must hold of any method and any workload, ours or other people's, checked on real processes."""

from istbench.conformance.check import Outcome, check_method, check_workload

__all__ = ["Outcome", "check_method", "check_workload"]
