"""Plausible run directories without training anything."""

import math
import random
import re

import msgspec

from istbench.base.decode import decode_own
from istbench.cluster.trace_builder import TraceBuilder, merge
from istbench.cluster.trace_file import save_trace
from istbench.results.events import Evaluation, Resume, RunPart, Start
from istbench.results.header import SCHEMA, TIMING_RULE, Header, HostRecord, Result
from istbench.results.store import RunDirectory

# Per method: final metric, steps to get most of the way, seconds a step on one node, MB sent a step.
CHARACTERS = {
    "ddp": (0.86, 300, 0.08, 4.0),
    "local_sgd": (0.84, 320, 0.045, 0.5),
    "ist": (0.83, 380, 0.02, 0.2),
    "parameter_server": (0.86, 300, 0.13, 8.0),
    "p3": (0.86, 300, 0.10, 8.0),
}
RESULT = Result(
    steps=10, samples=80, train_s=1.0, wall_s=2.0, final={"accuracy": None}, bytes_sent_per_node=3,
    bytes_received_per_node=3, train_loss=None, peak_memory_bytes_per_node=None, weights_sha256="", node_seconds=(),
)  # fmt: skip
LOCAL_STEPS = {"local_sgd": 8, "ist": 8}


def header(method="ddp", *, nodes=2, seed=0, options="", workload="speech", **changed):
    """A header as the launcher writes it; `changed` fields replaced."""
    label = f"{method} {options}".strip()
    given = dict(pair.split("=", 1) for pair in options.split())
    config = {
        "workload": workload, "method": method, "nodes": nodes, "seed": seed, "workload_options": {},
        "method_options": {"lr": 0.1, **given}, "batch_size": 128, "steps": 1000, "eval_every": 100,
        "max_seconds": None, "target": None, "device": "cpu", "threads": 1, "timeout_s": 300.0, "plugins": [],
    }  # fmt: skip
    return {
        "schema": SCHEMA, "timing_rule": TIMING_RULE, "status": "done", "workload": workload,
        "cell": f"{workload}-{re.sub('[^A-Za-z0-9._-]', '-', label)}-n{nodes}-s{seed}",
        "workload_label": workload, "method": method, "method_label": label, "nodes": nodes, "seed": seed,
        "threads": 1, "control_nodes": None, "narrowed": {}, "batch_size": 128, "metric": "accuracy",
        "lower_is_better": False, "unit": "", "targets": [0.7, 0.8], "parameters": 1000,
        "data": "synthetic", "typed_data": "", "config": config, "budget": "30 epochs", "error": None, "git": None,
        "data_source": {"kind": "synthetic", "fingerprint": "ab" * 32, "train": 1000, "test": 100},
        "versions": {"istbench": "0.1.0", "torch": "2.11.0", "python": "3.11.9"},
        "host": {"name": "laptop", "cores": 8, "machine": "x86_64"},
        **changed,
    }  # fmt: skip


def part_on(name, *, cores):
    """A part of a run on the machine `name`."""
    host = HostRecord(name=name, cores=cores, machine="")
    return RunPart(host=host, threads=1, versions={"torch": "2.11.0"}, git=None)


def start(**changed):
    return Start(**{"time": "now", "part": part_on("laptop", cores=8), **changed})


def resume(step, **changed):
    return Resume(step=step, **{"time": "now", "part": part_on("laptop", cores=8), **changed})


def evaluation(step, train_s, value, *, sent=0, loss=1.0):
    """An evaluation event; `value` is None where the metric was not a number."""
    return Evaluation(
        step=step, samples=step * 256, train_s=train_s, wall_s=train_s * 1.2, evaluate_s=0.1, assemble_s=0.05,
        bytes_sent_per_node=sent, bytes_received_per_node=sent, train_loss=None if step == 0 else loss,
        metrics={"accuracy": value},
    )  # fmt: skip


def ramp(seconds, value=0.9):
    """Events of a run that rises linearly to `value` in `seconds`, with an evaluation soon after the start."""
    return [
        evaluation(0, 0.0, 0.0),
        evaluation(10, seconds / 10, value / 10, sent=200_000),
        evaluation(100, seconds, value, sent=2_000_000),
    ]


def averaging_trace(nodes=2, *, local_steps=1, rounds=3, compute=(0.01,), size=1_000_000, gflops=100.0):
    """A trace of `rounds` rounds of `local_steps` steps that each end in an all-reduce of `size` bytes.

    compute: seconds a step, by node, the last for all further ones. gflops: of the machine it was recorded on.
    """
    recorded = []
    for rank in range(nodes):
        builder = TraceBuilder(clock=lambda: 0.0)
        for step in range(1, rounds * local_steps + 1):
            builder.compute(compute[min(rank, len(compute) - 1)])
            if step % local_steps == 0:
                builder.wait(builder.post("all_reduce", size))
                builder.mark("round")
            builder.mark("step")
        recorded.append(builder.to_arrays())
    return merge(recorded, gflops=gflops, batch_size=128)


def write_run(results, head, events, *, memory=50_000_000, trace=None, computing=(), hosts=("laptop",)):
    """A run directory of `head` and `events` under `results`, with `trace` if given; its path.

    computing: seconds that each node computed, by rank, on `hosts`, the last of them for all further ranks.
    """
    directory = RunDirectory(results / "runs" / head["cell"])
    last = events[-1] if events else evaluation(0, 0.0, 0.0)
    result = {
        "final": last.metrics, "train_s": last.train_s, "wall_s": last.wall_s, "steps": last.step,
        "samples": last.samples, "train_loss": last.train_loss, "bytes_sent_per_node": last.bytes_sent_per_node,
        "bytes_received_per_node": last.bytes_received_per_node,
        "peak_memory_bytes_per_node": memory, "weights_sha256": "00" * 32,
        "node_seconds": [
            {"rank": rank, "host": hosts[min(rank, len(hosts) - 1)], "computing_s": seconds,
             "waiting_s": last.train_s - seconds}
            for rank, seconds in enumerate(computing)
        ],
    }  # fmt: skip
    whole = {"result": result if head["status"] == "done" else None, **head}
    directory.create(msgspec.convert(whole, Header, dec_hook=decode_own))
    directory.append(start())
    for event in events:
        directory.append(event)
    if trace is not None:
        save_trace(trace, directory.trace)
    return directory


def write_plausible(results, method, *, nodes=2, seed=0, options="", best=None, traced=False, **changed):
    """A run whose curve rises as training runs do, with a trace that fits it where `traced`."""
    ceiling, steps, seconds, megabytes = CHARACTERS.get(method, (0.8, 350, 0.05, 1.0))
    rng = random.Random(f"{method} {nodes} {seed} {options}")
    ceiling = (best or ceiling) - 0.004 * nodes + rng.uniform(-0.01, 0.01)
    seconds *= (1 + 0.3 * (megabytes > 1) * math.log2(nodes)) * rng.uniform(0.95, 1.05)
    events = [
        evaluation(
            step,
            step * seconds,
            max(0.03, ceiling * (1 - math.exp(-step / steps)) + rng.uniform(-0.012, 0.012) * (step > 0)),
            sent=round(step * megabytes * 1e6 * (nodes > 1)),
        )
        for step in range(0, 1501, 50)
    ]
    head = header(method, nodes=nodes, seed=seed, options=options, **changed)
    every = LOCAL_STEPS.get(method, 1)
    size = round(megabytes * 1e6 * every * nodes / (2 * max(nodes - 1, 1)))
    trace = averaging_trace(nodes, local_steps=every, compute=(seconds,), size=size) if traced else None
    return write_run(results, head, events, trace=trace)
