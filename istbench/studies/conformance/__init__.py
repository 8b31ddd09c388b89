"""Checks that every method and workload must pass, built-in or plug-in, on real processes."""
