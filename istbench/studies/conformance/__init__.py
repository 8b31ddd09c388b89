"""Checks that every method and workload must pass, built-in or plug-in, on real processes."""

from istbench.studies.conformance.check import CheckResult, check_method, check_task, check_workload

__all__ = ["CheckResult", "check_method", "check_task", "check_workload"]
