"""Fake runs of `istbench reproduce p3` at laptop scale."""

from fake_runs import averaging_trace, header, ramp, write_run

SIZES = {
    "baseline": ("parameter_server", {"slice_params": 0, "split_params": 1_000_000}, 6_000_000),
    "whole": ("parameter_server", {"slice_params": 0, "split_params": 0}, 9_000_000),
    "alone": ("p3", {"slice_params": 50_000, "split_params": 0, "priority": False}, 4_000_000),
    "p3": ("p3", {"slice_params": 50_000, "split_params": 0, "priority": True}, 3_000_000),
}
"""By cell: method, options, and the bytes of its messages. p3 has the smallest messages."""


def write_p3_run(results, cell, method, options, size, seed=0):
    """A run of the translation model on four nodes."""
    head = header(
        method, workload="translation", cell=cell, seed=seed, nodes=4, budget="4 steps", parameters=48_000_000
    )
    head["config"] |= {"method_options": options, "batch_size": 8, "steps": 4, "eval_every": 4}
    head["config"] |= {"workload_options": {"samples": 32}}
    write_run(results, head, ramp(1.0), trace=averaging_trace(4, size=size))


def write_p3_runs(results):
    """Every configuration of the translation model."""
    for cell, (method, options, size) in SIZES.items():
        write_p3_run(results, cell, method, options, size)
