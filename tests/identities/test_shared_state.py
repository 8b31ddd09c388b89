"""A checkpoint holds once what is the same on all nodes, bit for bit, and every node gets its state back."""

import tempfile
from pathlib import Path

import pytest
import torch
from published_steps import publish_states
from safetensors.torch import load_file

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.checkpoint import Flat
from istbench.node.checkpoint_steps import Totals
from istbench.node.distributed_checkpoint import DistributedCheckpoint
from istbench.studies.conformance.training import open_workload, set_up, train

TOY = {"hidden": 24, "layers": 2, "batch_norm": True}
STEPS, ROUND = 4, 4
# Method, options, and the parts of its state that are shared.
CASES = [
    ("ddp", {"momentum": 0.9}, {"model", "optimizer"}),
    ("ddp", {"optimizer": "adam"}, {"model", "optimizer"}),
    ("zero", {"momentum": 0.9}, {"model"}),
    ("parameter_server", {"momentum": 0.9}, {"model"}),
    ("p3", {"optimizer": "adam", "slice_params": 30}, {"model"}),
    ("local_sgd", {"momentum": 0.9, "local_steps": ROUND}, {"model"}),
    ("local_sgd", {"momentum": 0.9, "local_steps": ROUND, "average_optimizer": True}, {"model", "optimizer"}),
    ("local_sgd", {"momentum": 0.9, "local_steps": ROUND + 1}, set()),
    ("diloco", {"local_steps": ROUND}, {"model", "outer"}),
    ("diloco", {"local_steps": ROUND + 1}, {"outer"}),
    ("streaming_diloco", {"local_steps": ROUND, "delay": 1}, {"outer"}),
    ("sparseloco", {"local_steps": ROUND, "chunk": 30, "top": 4}, {"model", "outer"}),
    ("noloco", {"local_steps": ROUND}, set()),
    ("ist", {"local_steps": ROUND}, set()),
]


def names_in(directory, stem):
    path = directory / str(STEPS) / f"{stem}.safetensors"
    return set(load_file(path)) if path.exists() else set()


def node_written(fabric, folder):
    """By case: shared parts of the state, whether all comes back, and whether no tensor was written twice."""
    workload, seen = open_workload("toy", TOY), []
    for number, (name, options, _) in enumerate(CASES):
        method = set_up(fabric, workload, name, options)
        train(fabric, workload, method, 0, STEPS)
        method.drain()
        state = method.state_dict()
        flat = Flat.of(state, method.is_shared)
        directory = Path(folder, str(number))
        totals = Totals(
            step=STEPS, train_s=0, wall_s=0, bytes_sent=0, bytes_received=0, computing_s=(), evaluations=0,
            evaluations_sha256="",
        )  # fmt: skip
        publish_states(DistributedCheckpoint(directory, fabric), totals, state, method.is_shared)
        _, back, _ = DistributedCheckpoint(directory, fabric).read()
        first, second = Flat.of(state), Flat.of(back)
        whole = first.text == second.text and first.own.keys() == second.own.keys()
        whole = whole and all(torch.equal(first.own[key], second.own[key]) for key in first.own)
        own, shared = names_in(directory, f"rank-{fabric.rank}"), names_in(directory, "shared")
        once = shared == flat.shared.keys() and own | shared == first.own.keys() and not own & shared
        seen.append([sorted({key.split("/")[1] for key in shared}), whole, once])
    return seen


@pytest.mark.parametrize("nodes", [2, 3])
def test_shared_state_is_written_once_and_comes_back_bit_for_bit(nodes):
    with tempfile.TemporaryDirectory() as folder:
        seen = on_nodes(node_written, nodes, folder)
    for rank, of_rank in enumerate(seen):
        for (name, options, shared), (parts, whole, once) in zip(CASES, of_rank, strict=True):
            assert set(parts) == shared, (name, options, rank)
            assert whole, (name, options, rank)
            assert once, (name, options, rank)


def test_buffers_of_batch_norm_are_each_nodes_own():
    """They differ: each node sees its minibatches alone."""
    first, second = on_nodes(node_with_buffers, 2)
    means = [key for key in first if key.endswith("running_mean")]
    assert len(means) == TOY["layers"]
    assert all(first[key] != second[key] for key in means)
    assert not any("running" in key for key in first["shared"])


def node_with_buffers(fabric):
    workload = open_workload("toy", TOY)
    method = set_up(fabric, workload, "ddp", {})
    train(fabric, workload, method, 0, STEPS)
    flat = Flat.of(method.state_dict(), method.is_shared)
    own = {key.strip("/"): value.tolist() for key, value in flat.own.items()}
    return {**own, "shared": sorted(flat.shared)}
