"""The trace of a recorded script, beside the trace that a real run of the same model records."""

import base64
import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from script_records import script_record

import istbench
from istbench.base.errors import UserError
from istbench.cli.script_report import script_report
from istbench.cluster.clock import cluster_time
from istbench.cluster.estimate import bytes_sent
from istbench.cluster.profile import load_profile
from istbench.cluster.script_record import load_script
from istbench.cluster.trace import COMPUTE, EVENT, POST, WAIT_BEFORE, WORK
from istbench.cluster.trace_builder import merge
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.on_nodes import on_nodes
from istbench.plan.script_time import ChosenMethod, alone_trace, chosen_methods, script_time
from istbench.plan.script_trace import ScriptWorkload, plan_script, script_trace
from istbench.studies.conformance.training import batches_of, initial_model, open_workload, set_up

SLOW = load_profile("home-100mbit")
TOY = {"hidden": 384, "samples": 4096}
METHODS = {
    "ddp": {}, "local_sgd": {"local_steps": 4},
    "ddp accumulate": {"accumulate": 4}, "ddp compress": {"compress": "powersgd", "rank": 2},
    "zero": {}, "fsdp": {}, "p3": {}, "parameter_server": {},
}  # fmt: skip
STEPS = 28
STEP_S, WORK_S = 0.01, 0.002  # computing of a step, and of its work beside training


def chosen(method):
    return ChosenMethod(name=method.split()[0], options=METHODS[method])


def node_traces(fabric):
    """By method, the recorded events of this node and the window of its queue."""
    workload = open_workload("toy", TOY)
    found = {}
    for name, options in METHODS.items():
        recorder = fabric.recorder = Recorder(fabric.device)
        method = set_up(fabric, workload, name.split()[0], options)
        batches = batches_of(fabric, workload, method)
        for step in range(STEPS):
            method.step(workload.train_batch(batches.indices(step), batches.generator(step)))
            recorder.mark("step")
        method.drain()
        found[name] = [base64.b64encode(recorder.events().tobytes()).decode(), recorder.window]
    return found


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A plain loop over the same model, recorded."""
    file = tmp_path_factory.mktemp("record") / "toy.json"
    workload = open_workload("toy", TOY)
    model = initial_model(workload)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with istbench.record(optimizer, file=file, steps=12):
        for step in range(100):
            loss = workload.loss(model, workload.train_batch(torch.arange(128) + step, torch.Generator()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.set_num_threads(threads)
    return load_script(file)


def evenly_computing(trace):
    """`trace` with the same seconds of computing in each step, whatever this machine took for them."""
    nodes = tuple(events.copy() for events in trace.nodes)
    for events in nodes:
        computing, work = events["code"] == COMPUTE, (events["code"] == POST) & (events["kind"] == WORK)
        for these, seconds in ((computing, STEP_S), (work, WORK_S)):
            events["seconds"][these] = seconds * trace.steps / max(1, np.count_nonzero(these))
    return dataclasses.replace(trace, nodes=nodes)


@pytest.mark.processes
@pytest.mark.parametrize("nodes", [2, 4])
def test_it_sends_the_bytes_and_takes_the_time_of_a_real_run(record, nodes):
    by_rank = on_nodes(node_traces, nodes)
    meta = msgspec.structs.asdict(record.machine)
    del meta["nodes"], meta["window"]
    speed = {"gflops": alone_trace(record).gflops, "memory_gb_per_s": record.machine.memory_gb_per_s}
    slow = dataclasses.replace(SLOW.with_bandwidth(2e5), **speed)
    for name in METHODS:
        events = [np.frombuffer(base64.b64decode(own[name][0]), dtype=EVENT) for own in by_rank]
        real = merge(events, **meta, window=by_rank[0][name][1])
        made = script_trace(record, chosen(name), nodes)
        sent = [bytes_sent(own, nodes, rank) / real.steps for rank, own in enumerate(real.nodes)]
        planned = [bytes_sent(own, nodes, rank) / made.steps for rank, own in enumerate(made.nodes)]
        assert planned == sent[: len(planned)], name
        assert max(sent) == max(planned), name
        seconds = [cluster_time(evenly_computing(trace), slow, [8, 16]).seconds for trace in (real, made)]
        theirs, ours = (after - before for before, after in seconds)
        assert ours == pytest.approx(theirs, rel=0.03), name


def test_messages_start_when_the_recorded_gradients_are_ready():
    (events,) = script_trace(script_record(), chosen("parameter_server"), 2).nodes[:1]
    first_send = np.flatnonzero((events["code"] == POST) & (events["kind"] == 1))[0]
    computed = events["seconds"][:first_send][events["code"][:first_send] == COMPUTE].sum()
    assert computed == pytest.approx(script_record().parameters[0].ready_s)
    assert (events["code"] == WAIT_BEFORE).any()  # the first forward pass waits for the round before


def test_a_step_without_messages_takes_the_recorded_seconds():
    record = script_record()
    for method in ("ddp", "local_sgd"):
        trace = script_trace(record, chosen(method), 2)
        assert trace.computing_s / trace.steps == pytest.approx(record.step_s)
    events = script_trace(record, chosen("fsdp"), 4).nodes[0]
    assert events["seconds"].sum() / 4 == pytest.approx(record.step_s - 0.75 * record.update_s)


def test_servers_share_the_update_and_add_the_gradients():
    record = script_record()
    trace = script_trace(record, chosen("p3"), 2)
    work = [own["seconds"][(own["code"] == POST) & (own["kind"] == WORK)].sum() for own in trace.nodes]
    adding = 3e-9 * record.gradient_bytes / 10.0
    assert sum(work) / trace.steps == pytest.approx(record.update_s + adding)
    assert trace.computing_s / trace.steps == pytest.approx(record.step_s - record.update_s)


def test_more_bandwidth_and_fewer_bytes_are_faster():
    record, fast = script_record(), SLOW.with_bandwidth(1e12)
    seconds = {}
    for profile in (SLOW, fast):
        for method in METHODS:
            time = script_time(record, chosen(method), script_trace(record, chosen(method), 4), profile)
            seconds[profile.bandwidth_out, method] = time.step_s
            assert time.step_s >= 0.9 * time.alone_s
    assert all(seconds[1e12, method] < seconds[SLOW.bandwidth_out, method] for method in METHODS)
    assert seconds[SLOW.bandwidth_out, "local_sgd"] < 0.5 * seconds[SLOW.bandwidth_out, "ddp"]


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("ist", "ist cuts the model by groups of neurons, which sizes and times do not tell"),
        ("dslide", "dslide computes with kernels of its own"),
        ("model_parallel", "model_parallel cuts the model at its wide output, which sizes and times do not tell"),
        ("nothing", "unknown method 'nothing'"),
    ],
)
def test_a_method_that_needs_more_than_sizes_is_refused(method, reason):
    with pytest.raises(UserError, match=reason):
        script_report(script_record(), [SLOW], [2], [method])


def test_a_report_has_every_method_that_can():
    report = script_report(script_record(), [SLOW], [2, 3])
    (table,) = report.tables
    methods = [row[0].value for row in table.rows]
    assert {name.split()[0] for name in METHODS} <= set(methods)
    assert any("accuracy by these methods are unknown" in line for line in table.footer)
    assert not report.problems


def test_methods_are_typed_with_their_options():
    methods = chosen_methods(["ddp,p3", "local_sgd local_steps=40 lr=0.1"])
    assert [method.label for method in methods] == ["ddp", "p3", "local_sgd local_steps=40 lr=0.1"]
    with pytest.raises(UserError, match="--method is empty"):
        chosen_methods(["ddp,"])


@pytest.mark.parametrize(
    ("optimizers", "state_tensors", "planned"),
    [
        (("SGD",), 0, ("sgd", 0.0)), (("SGD",), 1, ("sgd", 0.9)), (("AdamW", "AdamW"), 2, ("adamw", 0.0)),
        (("MuonAndAdamW",), 1, ("muon", 0.0)), (("Lion",), 1, ("sgd", 0.9)), (("Lion", "SGD"), 5, ("adam", 0.0)),
    ],
)  # fmt: skip
def test_a_plan_has_the_optimizer_of_the_script_or_one_with_as_much_state(optimizers, state_tensors, planned):
    record = script_record(state_tensors=state_tensors, optimizers=optimizers)
    found = ScriptWorkload(record).method_defaults("ddp")
    assert (found["optimizer"], found["momentum"]) == planned


def test_a_plan_has_the_recorded_memory_and_step():
    record = script_record(state_tensors=2, optimizers=("Lion",), state_bytes=2_000_000)
    cluster = load_profile("m5.2xlarge")
    plan = plan_script(record, chosen("ddp"), 4, cluster)
    memory = plan.memory.parts
    assert memory["parameters"] == record.model_bytes
    assert memory["optimizer_state"] == 2 * record.gradient_bytes
    assert memory["activations"] == 50_000_000 - record.model_bytes - 2_000_000
    assert plan.sent == 2 * record.gradient_bytes * 3 // 4
    assert plan.seconds > plan.compute_seconds > 0
    assert plan.as_json()["batch_size"] is None
    sharded = plan_script(record, chosen("fsdp"), 4, cluster)
    assert sharded.memory.parts["parameters"] < memory["parameters"] / 3
    for speeds in ((1.0, 0.5), (0.5, 1.0)):  # the slowest node, wherever it is
        slow = plan_script(record, chosen("ddp"), 4, dataclasses.replace(cluster, speeds=speeds))
        assert slow.compute_seconds == pytest.approx(2 * plan.compute_seconds, rel=1e-3)
