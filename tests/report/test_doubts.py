"""How sure an answer is, and among whom it holds."""

import itertools

from fake_runs import header, ramp, write_run
from read_tables import group_of

from istbench.cluster.trace import without_core
from istbench.cluster.trace_builder import TraceBuilder, merge
from istbench.report.answer import answer


def write(results, methods, *, seeds=1, trials=None, trace=None, nodes=2, **changed):
    for seconds, method in enumerate(methods, start=1):
        for seed in range(seeds):
            head = header(method, seed=seed, nodes=nodes, **changed)
            head["config"] |= {"tuned": trials} if trials else {}
            head["config"]["method_options"]["schedule"] = "cosine"
            write_run(results, head, ramp(9.0 * seconds + seed), trace=trace)


def answered(results):
    group = group_of(results)
    return answer(group, group.targets[-1])


def crowded_trace(busy=0.01, passed=0.02):
    """Two nodes that compute for `busy` of the `passed` seconds of each step."""
    recorded = []
    for _ in range(2):
        now = itertools.count(0.0, passed)
        builder = TraceBuilder(clock=lambda now=now: next(now))
        for _ in range(8):
            builder.compute(busy)
            builder.mark("step")
            builder.mark("round")
        recorded.append(builder.to_arrays())
    return merge(recorded, gflops=100.0, batch_size=128)


def test_one_untuned_seed_of_few_contenders_is_not_sure(results):
    write(results, ("ist", "local_sgd", "ddp"))
    found = answered(results)
    assert found.outcome == "first"
    assert found.doubts == ("one seed", "untuned", "without diloco")
    assert found.doubt == "Not sure: one seed; untuned; without diloco."
    assert found.basis[0] == "Among ddp, ist and local_sgd; untuned; cosine over 30 epochs."


def test_three_tuned_seeds_of_all_that_a_reader_expects_are_sure(results):
    write(results, ("ist", "local_sgd", "diloco", "ddp"), seeds=3, trials=20)
    found = answered(results)
    assert found.doubts == ()
    assert found.doubt == ""
    assert "tuned by 20 trials each" in found.basis[0]


def test_a_target_before_the_first_evaluation_is_not_sure(results):
    for method, seconds in (("ddp", 9.0), ("local_sgd", 12.0)):
        write_run(results, header(method), [ramp(seconds)[0], ramp(seconds)[-1]])
    assert "reached before the first evaluation" in answered(results).doubts


def test_measured_seconds_of_a_shared_machine_are_not_sure(results):
    methods = ("ist", "local_sgd", "diloco", "ddp")
    write(results, methods, seeds=3, trials=20, trace=crowded_trace())
    assert round(without_core(crowded_trace()), 1) == 0.5
    (doubt,) = answered(results).doubts
    assert doubt == "in 50% of the compute seconds a node had no core to itself"


def test_cores_of_an_idle_machine_are_no_doubt(results):
    write(results, ("ist", "local_sgd", "diloco", "ddp"), seeds=3, trials=20, trace=crowded_trace(0.019))
    assert answered(results).doubts == ()


def test_nodes_that_take_turns_are_not_sure(results):
    host = {"name": "laptop", "cores": 2, "machine": "x86_64"}
    write(results, ("ist", "local_sgd", "diloco", "ddp"), seeds=3, trials=20, nodes=4, host=host)
    assert answered(results).doubts == ("4 nodes took turns on 2 cores",)
