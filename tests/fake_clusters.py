"""Clusters on which what a replay takes can be worked out by hand."""

import dataclasses

from fake_runs import averaging_trace, header, ramp, write_run

from istbench.cluster.profile import load_profile
from istbench.report.groups import Sweep, group_runs
from istbench.results.load import load_runs
from istbench.results.on_cluster import runs_on_clusters

M5 = load_profile("m5.2xlarge")
# Machines as fast as the one that recorded, on links whose only cost is bytes: 1 MB/s.
BARE = dataclasses.replace(M5, gflops=100.0, latency_s=0.0, overhead_s=0.0).with_bandwidth(8e6)


def sweep_of(results, *bandwidths):
    """The runs in `results`, on bare links of so many bits/s."""
    profiles = [BARE.with_bandwidth(bits) for bits in bandwidths]
    on_clusters, problems = runs_on_clusters(load_runs(results)[0], profiles)
    assert problems == []
    at_each = zip(profiles, on_clusters, strict=True)
    groups = [group for profile, runs in at_each for group in group_runs(runs, profile=profile)]
    assert len(groups) == len(profiles)
    return Sweep(cluster="bare", groups=tuple(groups))


def write_pair(results, **changed):
    """ddp: 10 ms and 1 MB a step, there in 100 steps; local_sgd: 30 ms a step, 1 MB in ten, there in as many."""
    for method, compute, every in (("ddp", 0.01, 1), ("local_sgd", 0.03, 10)):
        trace = averaging_trace(2, compute=(compute,), local_steps=every)
        write_run(results, header(method, **changed), ramp(5.0), trace=trace)
