"""Faults on purpose: what they cost each method, beside the fault-free run and the simulation."""
