"""Options at their bounds: a method trains with them, if not well. Functions named `node_*` run on every node."""

import pytest

from istbench.launch.processes.on_nodes import on_nodes
from istbench.studies.conformance.training import assembled, open_workload, set_up, train

pytestmark = pytest.mark.processes

MOST = 2**40
EXTREMES = [
    ("ddp", {"bucket_mb": 5e-324}),
    ("ddp", {"bucket_mb": 2**20, "lr": 1e6, "weight_decay": 1e6}),
    ("zero", {"bucket_mb": 5e-324, "momentum": 1 - 2**-53}),
    ("fsdp", {"group_params": 1, "optimizer": "adamw", "weight_decay": 1e6}),
    ("fsdp", {"group_params": MOST, "forward_prefetch": False}),
    ("fsdp", {"accumulate": MOST, "shard": 2, "clip": 1e-6}),
    ("local_sgd", {"local_steps": MOST, "group": 2, "momentum": 1 - 2**-53}),
    ("diloco", {"local_steps": 2, "group": 2, "outer_lr": 0, "inner_state": "reset"}),
    ("local_sgd", {"local_steps": MOST, "lr": 0, "momentum": 1 - 2**-53}),
    ("diloco", {"local_steps": 1, "outer_lr": 1e6, "outer_momentum": 1 - 2**-53, "inner_state": "reset"}),
    ("streaming_diloco", {"local_steps": 2, "fragments": 2, "delay": 1, "alpha": 1 - 2**-53, "send": "int8"}),
    ("streaming_diloco", {"local_steps": MOST, "fragments": 1, "delay": MOST, "outer_lr": 0}),
    ("sparseloco", {"local_steps": 1, "chunk": 2**15, "top": 2**15, "feedback": 1 - 2**-53, "outer_lr": 0}),
    ("sparseloco", {"local_steps": 1, "chunk": 1, "top": 1, "feedback": 0}),
    ("noloco", {"local_steps": 1, "outer_momentum": 1 - 2**-53, "pull": 5e-324}),
    ("ist", {"local_steps": MOST, "optimizer": "adamw", "weight_decay": 1e6}),
    ("parameter_server", {"accumulation_steps": MOST, "split_params": 1}),
    ("parameter_server", {"split_params": MOST}),
    ("p3", {"slice_params": MOST, "window": MOST}),
    ("p3", {"slice_params": 0, "window": 1, "split_params": 1}),
]
OF_WIDE = [
    ("model_parallel", {"optimizer": "adamw", "weight_decay": 1e6}),
    ("sampled_softmax", {"target_active": 1, "lr": 1e6}),
    ("dslide", {"functions": 1, "tables": 10_000, "common_share": 0, "rebuild_growth": 10}),
    ("dslide", {"lr": 1e6, "rebuild_first": 1, "common_share": 0, "random_share": 1 - 2**-53}),
]


def node_extremes(fabric):
    toy = open_workload("toy", {"hidden": 3, "layers": 1})
    wide = open_workload("amazon670k", {"hidden": 9, "features": 9, "labels": 20, "points": 600})
    trained = []
    for workload, (name, options) in [*((toy, own) for own in EXTREMES), *((wide, own) for own in OF_WIDE)]:
        method = set_up(fabric, workload, name, options)
        trained.append(len(train(fabric, workload, method, 0, 3)))
        method.drain()
        assembled(fabric, method)
    return trained


def test_every_method_takes_its_options_to_their_bounds():
    assert on_nodes(node_extremes, 2) == [[3] * len(EXTREMES + OF_WIDE)] * 2
