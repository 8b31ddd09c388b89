"""The scale of recorded seconds by what bounds them, and its range."""

import dataclasses

import pytest
from traces import cluster, same, trace

from istbench.base.errors import UserError
from istbench.cluster.clock import cluster_time
from istbench.cluster.scale import Scale, scale
from istbench.cluster.simulator import replay
from istbench.cluster.speed import Speed, StepWork

# On the recording machine 1 s of products and 1 s of memory; on the cluster half a second and a quarter.
WORK = StepWork(operations=100e9, bytes=10e9)
HERE = {"gflops": 100.0, "memory_gb_per_s": 10.0, "work": WORK, "threads": 2, "device": "cpu"}
THERE = cluster(gflops=200.0, memory_gb_per_s=40.0, cores=4.0)
STEP = [("compute", 2.0)]


def test_operations_scale_by_products_and_bytes_by_memory():
    found = scale(same(2, STEP, **HERE), THERE)
    assert found == Scale(compute=0.75 / 2, low=0.75 / 2, high=0.75 / 2, work=(10 / 2) / (40 / 4))
    assert replay(same(2, STEP, **HERE), THERE).finish_s.tolist() == [[0.75]] * 2


def test_a_step_of_one_kind_scales_by_that_speed_alone():
    products = same(1, STEP, **HERE | {"work": StepWork(operations=1e9, bytes=0.0)})
    memory = same(1, STEP, **HERE | {"work": StepWork(operations=0.0, bytes=1e9)})
    assert scale(products, THERE).compute == 0.5
    assert scale(memory, THERE).compute == 0.25


def test_the_same_step_recorded_while_memory_was_slow_replays_alike():
    slow = same(1, [("compute", 3.0)], **HERE | {"memory_gb_per_s": 5.0})
    assert replay(slow, THERE).seconds == pytest.approx(replay(same(1, STEP, **HERE), THERE).seconds)


def test_what_the_model_does_not_explain_may_scale_like_either_speed():
    found = scale(same(1, [("compute", 4.0)], **HERE), THERE)
    assert found.compute == 0.375
    assert (found.low, found.high) == (pytest.approx((0.375 + 0.25) / 2), pytest.approx((0.375 + 0.5) / 2))


def test_measurements_that_disagree_widen_the_range():
    moments = tuple(Speed(gflops=100.0 * times, memory_gb_per_s=10.0 * times) for times in (0.8, 1.25))
    found = scale(same(1, STEP, **HERE | {"moments": moments}), THERE)
    assert (found.low, found.high) == (pytest.approx(0.375 * 0.8), pytest.approx(0.375 * 1.25))


def test_without_a_speed_of_memory_products_alone_count_and_the_place_is_named():
    for changes in ({"memory_gb_per_s": None}, {"work": None}):
        assert scale(same(1, STEP, **HERE | changes), THERE) == Scale(
            compute=0.5, work=scale(same(1, STEP, **HERE | changes), THERE).work, lacks="the trace"
        )
    bare = dataclasses.replace(THERE, memory_gb_per_s=None)
    assert scale(same(1, STEP, **HERE), bare) == Scale(compute=0.5, lacks="the profile of test")


WORKING = [("post", "work", 0), ("wait", 0)]


def worked(seconds, **meta):
    made = trace(WORKING, **meta)
    made.nodes[0]["seconds"][made.nodes[0]["code"] == 1] = seconds
    return made


def test_work_of_other_threads_scales_by_the_memory_of_a_core():
    assert replay(worked(1.0, **HERE), THERE).seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("there", "seconds"), [({"core_gb_per_s": 20.0}, 0.5), ({}, 1.0), ({"memory_gb_per_s": 5.0}, 2.0)]
)
def test_a_recording_of_one_thread_knows_a_core_alone(there, seconds):
    """Its 10 GB/s are no share: without the figure of a core there, a core draws as much, if the node has it."""
    found = replay(worked(1.0, **HERE | {"threads": 1}), dataclasses.replace(THERE, **there))
    assert found.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("changes", "there"),
    [({"device": "cuda"}, {}), ({"threads": None}, {}), ({}, {"cores": None}), ({}, {"memory_gb_per_s": None})],
)
def test_work_of_other_threads_takes_as_long_as_recorded_where_a_core_is_unknown(changes, there):
    found = replay(worked(1.0, **HERE | changes), dataclasses.replace(THERE, **there))
    assert found.seconds == pytest.approx(1.0)


def test_a_given_scale_holds_for_all_threads():
    assert replay(worked(1.0, **HERE), THERE, compute_scale=3.0).seconds == pytest.approx(3.0)


GATHERING = StepWork(operations=0.0, bytes=0.0, gathered=10e9)


def test_kernels_of_a_methods_own_scale_by_gathering():
    there = dataclasses.replace(THERE, gather_gb_per_s=20.0)
    made = same(1, STEP, **HERE | {"work": GATHERING, "gather_gb_per_s": 5.0})
    assert scale(made, there).compute == 0.25
    assert scale(made, THERE).compute == 0.25  # by memory in order, where the profile has no other figure


def test_kernels_of_a_methods_own_do_not_replay_on_gpus():
    with pytest.raises(UserError, match="kernels for processors only; choose a cluster of processors"):
        scale(same(1, STEP, **HERE | {"work": GATHERING}), dataclasses.replace(THERE, cores=None))


def test_the_range_of_a_run_is_that_of_its_computing():
    moments = tuple(Speed(gflops=100.0 * times, memory_gb_per_s=10.0 * times) for times in (0.8, 1.25))
    exchange = [("post", "all_reduce", 750_000), ("wait", 0)]  # 0.75 s of bandwidth, as long as it computes
    meta = HERE | {"moments": moments}
    made = same(2, [*STEP, *exchange], **meta)
    quick = cluster(gflops=200.0, memory_gb_per_s=40.0, latency_s=0.0, overhead_s=0.0)
    time = cluster_time(made, quick, [1])
    assert time.seconds == (pytest.approx(1.5),)
    assert (time.low, time.high) == (pytest.approx(0.9), pytest.approx(1.125))
    assert cluster_time(same(1, STEP), quick, [1]).low is None
