"""Recorded runs on a cluster's clock."""

import dataclasses

import msgspec
from fake_clusters import M5
from fake_runs import averaging_trace, header, ramp, write_plausible, write_run

from istbench.cluster.clock import cluster_time
from istbench.cluster.trace_file import load_trace
from istbench.results.load import load_run, load_runs
from istbench.results.on_cluster import runs_on_clusters


def test_a_replayed_run_keeps_its_evaluations_and_changes_when_they_were(results):
    directory = write_plausible(results, "local_sgd", nodes=4, traced=True)
    run = load_run(directory)
    ((replayed,),), problems = runs_on_clusters([run], [M5])
    assert problems == []
    assert replayed.curve.values == run.curve.values
    steps = [evaluation.step for evaluation in run.curve.evaluations]
    assert replayed.curve.seconds == cluster_time(load_trace(directory.trace), M5, steps).seconds
    assert replayed.curve.clock == "cluster_s"
    assert replayed.cluster.profile.name == "m5.2xlarge"
    assert replayed.header == run.header
    assert run.cluster is None


def test_a_seed_that_diverged_is_a_miss_on_nodes_that_were_never_run_too(results):
    for seed in range(3):
        lost = {"status": "failed", "error": "the loss became nan"} if seed else {}
        write_run(results, header("ddp", seed=seed, nodes=4, **lost), ramp(9.0), trace=averaging_trace(4))

    def dealt(run, trace, count):
        there = msgspec.structs.replace(run.header, nodes=count)
        return dataclasses.replace(run, header=there, extrapolated_from=run.header.nodes), averaging_trace(count)

    (replayed,), problems = runs_on_clusters(load_runs(results)[0], [M5], nodes=[8], redeal=dealt)
    assert problems == []
    there = [run for run in replayed if run.header.nodes == 8]
    assert sorted((run.header.seed, run.diverged) for run in there) == [(0, False), (1, True), (2, True)]


def test_runs_without_a_sound_trace_are_named_and_the_others_replayed(results):
    write_plausible(results, "ddp", traced=True)
    write_plausible(results, "ist")
    write_plausible(results, "p3")
    cut = write_plausible(results, "local_sgd", traced=True)
    cut.trace.write_bytes(cut.trace.read_bytes()[:200])
    uncalibrated = averaging_trace(2, gflops=None)
    write_run(results, header("ddp", seed=1), ramp(9.0), trace=uncalibrated)
    (replayed,), problems = runs_on_clusters(load_runs(results)[0], [M5])
    assert [run.header.cell for run in replayed] == ["speech-ddp-n2-s0"]
    calibration, torn, untraced = problems
    assert calibration.startswith("speech-ddp-n2-s1: the trace lacks the speed of the machine")
    assert "trace.npz is cut short" in torn
    assert untraced.endswith("two whole rounds of training: speech-ist-n2-s0, speech-p3-n2-s0")
