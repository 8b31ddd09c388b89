"""However a model is computed, a method is the method. Functions named `node_*` run on every node."""

import torch
from tiny_images import TinyImages

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.compute_options import Computed
from istbench.studies.conformance.training import assembled, largest_difference, set_up, through_disk, train

METHODS = {
    "ddp": {},
    "zero": {},
    "fsdp": {"group_params": 1},
    "local_sgd": {"local_steps": 3, "average_optimizer": True},
    "diloco": {"local_steps": 3, "optimizer": "sgd", "outer_momentum": 0.5},
    "streaming_diloco": {"local_steps": 4, "optimizer": "sgd", "outer_momentum": 0.5, "fragments": 4, "delay": 1},
    "ist": {"local_steps": 3},
    "parameter_server": {},
    "p3": {"slice_params": 50},
}
WAYS = {"plain": {}, "channels last": {"channels_last": True}, "half": {"amp": "fp16"}, "bfloat": {"amp": "bf16"}}
EXACT = 2e-5  # float32 sums in another order


def as_told(fabric, **told):
    workload = TinyImages()
    workload.open(workload.prepare(None, None, lambda *_: None))
    return Computed(workload, fabric.device, **told)


def node_ways(fabric, steps):
    """Of every method, the differences that a way of computing makes, and whether it resumes bit for bit."""
    seen = {}
    for name, own in METHODS.items():
        options = {**own, "lr": 0.05, "momentum": 0.9, "schedule": "cosine"}
        models = {}
        for way, told in WAYS.items():
            workload = as_told(fabric, **told)
            method = set_up(fabric, workload, name, options, steps=steps)
            train(fabric, workload, method, 0, steps)
            models[way] = assembled(fabric, method)
        workload = as_told(fabric, channels_last=True)
        first, second = (set_up(fabric, workload, name, options, steps=steps) for _ in range(2))
        train(fabric, workload, first, 0, steps // 2)
        second.load_state_dict(through_disk(first.state_dict(), fabric.rank))
        train(fabric, workload, second, steps // 2, steps)
        resumed = assembled(fabric, second)
        start = assembled(fabric, set_up(fabric, workload, name, options, steps=steps))
        if resumed is not None:
            pairs = zip(resumed.parameters(), models["channels last"].parameters(), strict=True)
            seen[name] = {way: largest_difference(models[way], models["plain"]) for way in WAYS}
            seen[name]["resumed"] = all(torch.equal(a, b) for a, b in pairs)
            seen[name]["moved"] = largest_difference(start, models["plain"])
    return seen


def test_every_method_is_itself_in_any_memory_format_and_nearly_so_in_half_precision():
    seen = on_nodes(node_ways, 2, 10)[0]
    assert seen.keys() == METHODS.keys()
    for name, found in seen.items():
        assert found["channels last"] < EXACT, (name, found)
        assert found["resumed"], name
        assert 0 < found["half"] < 0.02 * found["moved"], (name, found)
        assert 0 < found["bfloat"] < 0.1 * found["moved"], (name, found)
