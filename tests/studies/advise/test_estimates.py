"""Step one: variants by plan and replay. Nothing trains."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from istbench.base.options.run import RunRequest
from istbench.cluster.clock import cluster_time
from istbench.cluster.speed import Speed, StepWork
from istbench.cluster.trace import TraceMeta
from istbench.node.registry import build_method, build_workload
from istbench.plan.planned_cell import PlannedCell
from istbench.studies.advise.estimates import RecordedStep, StepEstimates, nodes_like_here
from istbench.studies.advise.seconds import mean_step_s
from istbench.studies.advise.variant import (
    EstimatedVariant,
    Variant,
    longest_alike,
    mark_slow,
    shortlist,
    tell_seconds_of,
)

META = TraceMeta(
    nodes=1,
    batch_size=16,
    gflops={"128x64x64": 10.0},
    memory_gb_per_s=10.0,
    moments=(Speed(gflops=10.0, memory_gb_per_s=10.0),),
    work=StepWork(operations=1e6, bytes=1e6),
    threads=1,
    device="cpu",
    cores=2,
)
BASE = RunRequest(workload="toy", method="ddp", nodes=2, workload_options={"hidden": 256})


PLUGINS = str(Path(__file__).parents[2] / "plan" / "plugins.py")


def estimates_at(bandwidth, base=BASE, given=None, **changed):
    cell = PlannedCell.of(msgspec.structs.replace(BASE, nodes=1))
    recorded = RecordedStep(meta=META, step_s=1e-3, operations=cell.operations)
    cluster = nodes_like_here(META, bandwidth=bandwidth, latency_s=0.0)
    cluster = dataclasses.replace(cluster, overhead_s=0.0, cores=None, backend="gloo", **changed)
    return StepEstimates(base, recorded, cluster, given or {})


def test_links_like_here_carry_less_than_their_bandwidth():
    profile = dataclasses.replace(nodes_like_here(META, bandwidth=1e8, latency_s=0.0), cores=None)
    assert profile.bandwidth_out / profile.payload == pytest.approx(1e8)
    assert profile.payload == 1448 / 1514


def by_label(found):
    return {one.variant.label: one for one in found}


def test_a_step_takes_its_computing_and_its_exposed_messages():
    """ddp's gradients, 4 bytes each, cross a link each way in a step; local_sgd's weights in a round."""
    cell = PlannedCell.of(BASE)
    wire = 4 * cell.parameters * 8 / (1e8 * 1448 / 1514)
    estimates = estimates_at(1e8)
    ddp = estimates.estimated(Variant(method="ddp"))
    assert max(wire, 1e-3) < ddp.step_s < wire + 1e-3 + 1e-4
    assert ddp.computing == pytest.approx(1e-3 / ddp.step_s, rel=0.01)
    rounds = estimates.estimated(Variant(method="local_sgd", options={"local_steps": 10}))
    assert rounds.round_steps == 10
    assert rounds.step_s == pytest.approx(1e-3 + wire / 10, rel=0.05)


def test_a_planned_step_takes_the_seconds_recorded_of_a_variant_that_computes_alike():
    """On other nodes, in proportion to its operations."""
    estimates, long = estimates_at(1e8), Variant(method="ist", options={"local_steps": 64})
    cell = estimates.estimated(Variant(method="ist", options={"local_steps": 4})).cell
    recorded = RecordedStep.of(cell.trace(META, 5e-3, 100), cell)
    assert recorded.step_s == pytest.approx(5e-3)
    assert mean_step_s(estimates.planned(long, 2, recorded)) == pytest.approx(5e-3)
    four = estimates.planned(long, 4, recorded)
    assert mean_step_s(four) / mean_step_s(estimates.planned(long, 4)) == pytest.approx(
        5e-3 / mean_step_s(estimates.planned(long, 2))
    )


def test_variants_compute_alike_if_only_the_length_of_their_rounds_differs():
    one = Variant(method="ist", options={"local_steps": 4, "lr": 0.1})
    assert one.computes_as(Variant(method="ist", options={"lr": 0.1}))
    assert not one.computes_as(Variant(method="ist", options={"local_steps": 4, "lr": 0.2}))
    assert not one.computes_as(Variant(method="local_sgd", options=one.options))
    assert Variant(method="ddp").computes_as(Variant(method="ddp", options={"accumulate": 4}, baseline=True))


def test_a_probe_trains_at_a_constant_rate_as_a_longer_run_begins():
    """The schedule of `text` spreads over the budget, so a short run would end at a low rate."""
    text = RunRequest(workload="text", method="ddp", nodes=2)
    constant = {"schedule": "constant", "warmup": 0.0, "cosine_end": 0.0}
    for method in ("ddp", "ist"):
        found = Variant(method=method, options={"lr": 0.01}).of(text, steps=10)
        assert found.method_options == {**constant, "lr": 0.01}
        options = build_method(method, found.method_options, workload=build_workload("text", {})).options
        assert {options.rate_at(step, found.steps) for step in range(10)} == {0.01}
    chosen = Variant(method="ddp", options={"schedule": "step"})
    assert chosen.of(text).method_options == {"schedule": "step"}
    assert Variant(method="ddp").of(BASE).method_options == {}


def test_the_schedule_of_a_workload_is_a_candidate_of_the_methods_that_most_try():
    text = RunRequest(workload="text", workload_options={"layers": 1}, method="ddp", nodes=2)
    assert Variant(method="ddp").own_schedule(text) == {"schedule": "cosine", "warmup": 0.05, "cosine_end": 0.1}
    methods = ["ddp", "local_sgd", "diloco", "ist", "zero"]
    found = by_label(estimates_at(1e8, base=text).all_variants(methods))
    scheduled = {label for label, one in found.items() if one.variant.scheduled}
    assert scheduled == {f"{method} schedule=cosine" for method in ("ddp", "local_sgd", "diloco", "ist")}
    assert not any("as ddp schedule=cosine does" in one.why_not for one in found.values())
    request = found["ist schedule=cosine"].variant.of(text, steps=10)
    assert request.method_options == {"schedule": "cosine"}, "the rest of the schedule is that of the workload"
    chosen = by_label(estimates_at(1e8, base=text, given={"ddp": {"lr": 0.1}}).all_variants(["ddp"]))
    assert "ddp lr=0.1 schedule=cosine" in chosen


def test_methods_that_extend_one_that_most_try_wait_until_all_of_those_are_tried():
    """A short time for probes ended with kinds of `diloco`, before `ist`."""
    methods = ["noloco", "sparseloco", "streaming_ist", "ist", "diloco", "local_sgd", "ddp"]
    tried = [one.variant.method for one in shortlist(estimates_at(1e8).all_variants(methods))]
    first = list(dict.fromkeys(tried))
    assert first[:4] == ["ddp", "local_sgd", "diloco", "ist"]
    assert {*first[4:]} == {"noloco", "sparseloco", "streaming_ist"}


def test_rounds_grow_until_nodes_compute_most_of_the_time():
    found = by_label(estimates_at(1e8).all_variants(["ddp", "local_sgd"]))
    assert "local_sgd local_steps=16" in found or "local_sgd local_steps=64" in found
    (accumulated,) = (one for label, one in found.items() if "accumulate" in label)
    assert accumulated.variant.baseline
    assert accumulated.computing >= 0.5
    fast = by_label(estimates_at(1e12).all_variants(["ddp", "local_sgd"]))
    assert [label for label in fast if "local_steps" in label] == []


def test_only_ddp_is_tried_with_rounds_of_one_step_and_with_fewer_bits():
    found = by_label(estimates_at(1e8).all_variants(["ddp", "zero", "fsdp", "parameter_server"]))
    (accumulated,) = (label for label in found if "accumulate" in label)
    assert [*found] == [
        "ddp", accumulated, "ddp compress=bf16", "ddp compress=fp16", "ddp compress=powersgd", "zero", "fsdp",
        "parameter_server",
    ]  # fmt: skip
    chosen = by_label(estimates_at(1e8, given={"ddp": {"accumulate": 3, "compress": "bf16"}}).all_variants(["ddp"]))
    assert [*chosen] == ["ddp accumulate=3 compress=bf16"]


def test_no_method_that_takes_as_long_as_ddp_can_be_first():
    found = by_label(estimates_at(1e12).all_variants(["ddp", "local_sgd", "zero", "ist"]))
    assert found["ddp"].why_not == ""
    assert "as long as one of ddp" in found["local_sgd"].why_not
    assert "learns as ddp does" in found["zero"].why_not
    assert found["ist"].why_not == "", "ist computes less"


def test_data_that_set_no_sizes_are_no_reason_to_leave_a_method_out(tmp_path):
    base = msgspec.structs.replace(BASE, workload="speech", workload_options={}, data=tmp_path)
    found = estimates_at(1e8, base=base).estimated(Variant(method="ddp"))
    assert (found.why_not, found.cell is None) == ("", False)


def test_a_method_that_does_not_fit_is_never_trained():
    found = by_label(estimates_at(1e8, memory_gib=1e-4).all_variants(["ddp", "ist"]))
    assert all(one.fits is False and "GiB of a node that has" in one.why_not for one in found.values())
    assert shortlist(found.values()) == []


def test_a_method_whose_rounds_have_no_plan_must_fit_too():
    base = msgspec.structs.replace(BASE, workload="amazon670k", workload_options={})
    variant = Variant(method="sampled_softmax")
    roomy, tight = (estimates_at(1e8, base, memory_gib=gib).estimated(variant) for gib in (64, 2))
    assert (roomy.fits, roomy.step_s, roomy.why_not) == (True, None, "")
    assert roomy.memory_bytes > 2 * 2**30
    assert tight.fits is False
    assert tight.why_not.endswith(" GiB of a node that has 2")


def test_the_memory_is_that_of_the_fullest_part_of_a_run():
    """With warm-up rounds, a node of ist trains the whole model at first."""
    base = msgspec.structs.replace(BASE, workload_options={"hidden": 4096})
    plain, warmed = (
        estimates_at(1e8, base).estimated(Variant(method="ist", options=options))
        for options in ({}, {"warmup_rounds": 2})
    )
    assert warmed.memory_bytes > 1.2 * plain.memory_bytes


def test_memory_without_a_plan_is_unknown():
    base = msgspec.structs.replace(BASE, workload="opaque", workload_options={}, plugins=(PLUGINS,))
    for estimates, method in ((base, "ddp"), (msgspec.structs.replace(BASE, plugins=(PLUGINS,)), "silent")):
        found = estimates_at(1e8, estimates).estimated(Variant(method=method))
        assert (found.memory_bytes, found.fits, found.why_not) == (None, None, "")


def test_a_method_that_refuses_the_workload_gives_its_reason():
    (found,) = estimates_at(1e8).all_variants(["dslide"])
    assert "amazon670k" in found.why_not


def test_only_a_method_with_an_outer_step_is_tried_if_its_step_takes_as_long_as_that_of_ddp():
    found = by_label(estimates_at(1e12).all_variants(["ddp", "local_sgd", "diloco"]))
    assert found["local_sgd"].why_not == "a step takes as long as one of ddp"
    assert found["diloco"].why_not == ""


def test_the_fastest_comes_first_then_baselines_then_one_of_each_method_by_its_speed():
    def one(method, step_s, baseline=False, **options):
        return EstimatedVariant(
            variant=Variant(method=method, options=options, baseline=baseline), step_s=step_s, computing=0.5
        )

    found = [
        one("b", 2.0),
        one("b", 1.0, local_steps=80),
        one("a", 3.0),
        one("ddp", 9.0, baseline=True),
        one("c", None),
    ]
    assert [each.variant.label for each in shortlist(found)] == ["ddp", "b local_steps=80", "a", "c", "b"]
    usual = [dataclasses.replace(one, usual_place=1) if one.variant.method == "c" else one for one in found]
    assert [each.variant.label for each in shortlist(usual)] == ["ddp", "c", "b local_steps=80", "a", "b"]


def test_of_equally_fast_values_of_a_text_only_the_first_trains():
    def compressed(how, step_s):
        return EstimatedVariant(
            variant=Variant(method="ddp", options={"compress": how}), step_s=step_s, computing=0.5
        )

    plain = EstimatedVariant(variant=Variant(method="ddp", baseline=True), step_s=4.0, computing=0.5)
    found = mark_slow([plain, compressed("bf16", 2.0), compressed("fp16", 2.0), compressed("powersgd", 1.0)])
    assert [one.why_not for one in found] == ["", "", "as fast as ddp compress=bf16", ""]


def test_a_method_that_makes_the_steps_of_ddp_learns_as_its_longer_probe_did():
    ddp, server = Variant(method="ddp"), Variant(method="parameter_server")
    accumulating = Variant(method="ddp", options={"accumulate": 2})
    trained = [(accumulating, 500), (ddp, 300), (server, 40)]
    assert longest_alike(server, trained) == "ddp"
    assert longest_alike(server, [(ddp, 300), (server, 300)]) == "parameter_server"
    assert (
        longest_alike(Variant(method="parameter_server", options={"lr": 0.1}), trained) == "parameter_server lr=0.1"
    )
    assert longest_alike(accumulating, trained) == "ddp accumulate=2"
    assert longest_alike(Variant(method="ist"), trained) == "ist"


def test_on_machines_like_this_one_recorded_seconds_stay():
    """Another method measures its speed by other shapes of products; its seconds of computing must not change."""
    estimates = estimates_at(1e12)
    trace = estimates.planned(Variant(method="ddp"), 2)
    cluster = nodes_like_here(META, bandwidth=1e12, latency_s=0.0)
    other = dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, gflops=2.5))
    first, moved, kept = (
        cluster_time(each, cluster, [40]).seconds[0] for each in (trace, other, cluster.seen(other))
    )
    assert moved < 0.9 * first
    assert kept == pytest.approx(first)


def test_a_bandwidth_that_the_page_names_leaves_out_headers_too():
    slow, fast = (nodes_like_here(META, bandwidth=bits, latency_s=0.0) for bits in (1e8, 1e9))
    assert slow.with_bandwidth(1e9).bandwidth_out == fast.bandwidth_out


def test_a_variant_without_a_probe_takes_its_seconds_from_its_kind_and_then_from_ddp():
    plain = Variant(method="ddp")
    found = [
        EstimatedVariant(variant=variant)
        for variant in (
            plain,
            Variant(method="ddp", options={"compress": "fp16"}),
            Variant(method="ist"),
            Variant(method="ist", options={"local_steps": 80}),
        )
    ]

    def told(method):
        return [one.variant.label for one in tell_seconds_of(Variant(method=method), found, plain)]

    assert told("ist") == ["ist", "ist local_steps=80", "ddp"]
    assert told("parameter_server") == ["ddp"]
