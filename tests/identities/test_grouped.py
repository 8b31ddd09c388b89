"""Groups of nodes that train as one, against plain loops and `ddp`. Functions named `node_*` run on every node."""

import pytest
import torch

from istbench.cluster.trace import KINDS, POST
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.footprint import PlannedNode
from istbench.node.digest import weights_sha256
from istbench.node.registry import build_method
from istbench.plan.step import step_cost
from istbench.studies.conformance.training import (
    assembled,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    through_disk,
    train,
)
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.contract import blank_model

EXACT = 2e-5  # float32 sums in another order, over some steps
STEPS, ROUND, STOP = 6, 4, 5  # the last round stays open
PLAIN = {"hidden": 13, "layers": 3}
NORMALISED = {**PLAIN, "batch_norm": True}
SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "clip": 0.1}
OUTER = {"outer_lr": 1.0, "outer_momentum": 0.0}
GROUPED = {"local_sgd": {}, "local_sgd, state": {"average_optimizer": True}, "diloco": OUTER}


def whole_training(fabric, method, options, model):
    """The model after `STEPS` steps."""
    workload = open_workload("toy", model)
    built = set_up(fabric, workload, method, options, steps=STEPS)
    train(fabric, workload, built, 0, STEPS)
    return assembled(fabric, built)


def trained(fabric, method, options, model):
    """The model after `STEPS` steps, and whether a training that resumes from disk gives its bits."""
    workload = open_workload("toy", model)
    whole = set_up(fabric, workload, method, options, steps=STEPS)
    for step in range(STOP):
        train(fabric, workload, whole, step, step + 1)
        assembled(fabric, whole)  # changes nothing
    state = through_disk(whole.state_dict(), fabric.rank)
    train(fabric, workload, whole, STOP, STEPS)
    resumed = set_up(fabric, workload, method, options, steps=STEPS)
    resumed.load_state_dict(state)
    train(fabric, workload, resumed, STOP, STEPS)
    models = assembled(fabric, whole), assembled(fabric, resumed)
    return models[0], models[0] is None or len(set(map(weights_sha256, models))) == 1


def joined_local_sgd(nodes, group, average_state):
    """Local SGD of one process for each group, on the joined minibatches of its nodes."""
    workload, options = open_workload("toy", PLAIN), build_method("local_sgd", SGD).options
    models = [plain_training(workload, options, 0) for _ in range(nodes // group)]
    optimizers = [options.build(model.parameters()) for model in models]
    size = workload.train_size, workload.batch_size
    shards = [ShardedBatches(*size, rank=rank, world_size=nodes, seed=0) for rank in range(nodes)]
    for step in range(STEPS):
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            indices = torch.cat([own.indices(step) for own in shards[number * group : (number + 1) * group]])
            optimizer.zero_grad()
            workload.loss(model, workload.train_batch(indices, torch.Generator())).backward()
            options.clip_gradients(model.parameters())
            optimizer.step()
        if (step + 1) % ROUND == 0 or step + 1 == STEPS:
            average([list(model.parameters()) for model in models])
            if average_state:
                average(
                    [[own.state[p]["momentum_buffer"] for p in own.param_groups[0]["params"]] for own in optimizers]
                )
    return models[0]


@torch.no_grad()
def average(lists):
    for tensors in zip(*lists, strict=True):
        mean = torch.stack(list(tensors)).mean(0)
        for own in tensors:
            own.copy_(mean)


def node_grouped(fabric):
    """By case: how far it is from its definition, and whether resuming changes nothing."""
    n, seen = fabric.world_size, {}
    ddp = whole_training(fabric, "ddp", SGD, NORMALISED)
    for name, own in GROUPED.items():
        method, options = name.split(",")[0], {**SGD, **own, "local_steps": ROUND}
        ungrouped = whole_training(fabric, method, options, NORMALISED)
        joined = joined_local_sgd(n, n // 2, "average_optimizer" in own)
        for case, group, model, wanted in (
            ("of all", n, NORMALISED, ddp),
            ("of one", 1, NORMALISED, ungrouped),
            ("halves", n // 2, PLAIN, joined),
        ):
            got, resumed = trained(fabric, method, {**options, "group": group}, model)
            seen[f"{name}, {case}"] = [largest_difference(got, wanted) if got else 0.0, resumed]
    return seen


def test_a_group_of_all_is_ddp_and_groups_are_local_sgd_on_joined_minibatches():
    first, *others = on_nodes(node_grouped, 4)
    assert len(first) == 3 * len(GROUPED)
    for name, (difference, _) in first.items():
        assert difference <= (0 if "of one" in name else EXACT), (name, difference)
    assert all(resumed for seen in (first, *others) for _, resumed in seen.values())


WIDE = {"hidden": 600, "layers": 3, "batch_norm": True}
CASES = {
    "fsdp": {"shard": 2, "accumulate": 2, "clip": 0.1},
    "fsdp, no accumulation": {"shard": 2},
    "fsdp, all": {"accumulate": 2, "forward_prefetch": False},
    "local_sgd": {"local_steps": 2, "momentum": 0.9, "average_optimizer": True, "group": 2},
    "diloco": {"local_steps": 2, "group": 2},
}


def node_posted(fabric, cases):
    """By case: the posts of a round, and bytes sent inside and between groups of two."""
    workload, seen = open_workload("toy", WIDE), {}
    for name, options in cases.items():
        fabric.recorder, sent = Recorder(fabric.device), []
        method = set_up(fabric, workload, name.split(",")[0], options)
        for step in range(2 * method.round_steps):  # from the end of the first round on it is recorded
            before = fabric.traffic["training"].sent
            train(fabric, workload, method, step, step + 1)
            fabric.recorder.mark("step")
            sent.append(fabric.traffic["training"].sent - before)
        seen[name] = [posts(fabric.recorder.events()), sum(sent[-method.round_steps :])]
    return seen


def posts(events):
    posted = events[events["code"] == POST]
    return [[int(event[key]) for key in ("kind", "peer", "bytes")] for event in posted]


def test_messages_are_as_planned_and_a_model_crosses_between_groups_once():
    workload = open_workload("toy", WIDE)
    model = blank_model(workload)
    weights = 4 * sum(own.numel() for own in model.parameters())
    values = weights + 4 * sum(own.numel() for own in model.buffers() if own.is_floating_point())
    cost = step_cost(model, workload, 16, copied=False)
    for rank, seen in enumerate(on_nodes(node_posted, 4, CASES)):
        for name, options in CASES.items():
            node = PlannedNode(rank, 4, cost, 1.0)
            method = build_method(name.split(",")[0], options, workload=workload)
            next(method.footprint(model, workload, 4, 16).rounds(node))
            posted, counted = seen[name]
            assert posted == posts(node.builder.to_arrays()), name
            if name == "fsdp, all":  # gathered once, averaged once
                padded = [-(-len(own) // 4) * 4 * own[0].numel() for own in model.parameters()]
                assert counted == 2 * 4 * sum(padded) * 3 // 4
                assert {KINDS[kind] for kind, *_ in posted} == {"all_gather", "reduce_scatter"}
                continue
            sent = {peer: sum(size for kind, to, size in posted if (kind, to) == (1, peer)) for peer in range(4)}
            inside, across = sent.pop(rank ^ 1), sent.pop(rank ^ 2)
            assert not any(sent.values())
            assert counted == inside + across
            if method.name == "fsdp":  # half of the model gathered, and half of the gradients averaged twice
                again = 0 if "accumulate" in options else 600 * 600 * 4 * 2 + 600 * 4 * 2
                norm = 4 if "clip" in options else 0
                assert (inside, across) == (weights + again / 2 + norm, weights / 2)
                continue
            state = weights if "average_optimizer" in options else 0
            # Two nodes at a place have half of the model each, and exchange it whole: the ring's bytes.
            assert across == (values + state) / 2
            assert inside == 2 * weights + (values - weights) + (values + state) / 2


SHARDED = {
    "halves": {"shard": 2},
    "halves, by layer": {"shard": 2, "group_params": 1},
    "halves, accumulated": {"shard": 2, "accumulate": 2},
    "all, accumulated": {"accumulate": ROUND},
    "all, accumulated, by layer": {"accumulate": ROUND, "group_params": 1, "forward_prefetch": False},
}
RULES = {"sgd": SGD, "adam": {"optimizer": "adam", "lr": 0.01}}


def node_sharded(fabric):
    """By case: how far `fsdp` is from `ddp` with as much accumulation, and whether resuming changes nothing."""
    seen, ddp = {}, {}
    for name, own in SHARDED.items():
        if own.get("shard", 2) > fabric.world_size:
            continue
        for rule, options in RULES.items():
            accumulate = own.get("accumulate", 1)
            if (rule, accumulate) not in ddp:
                same = {**options, "accumulate": accumulate}
                ddp[rule, accumulate] = whole_training(fabric, "ddp", same, PLAIN)
            got, resumed = trained(fabric, "fsdp", {**options, **own}, PLAIN)
            difference = largest_difference(got, ddp[rule, accumulate]) if got else 0.0
            seen[f"{name}, {rule}"] = [difference, resumed]
    return seen


@pytest.mark.parametrize("nodes", [2, 4])
def test_fsdp_with_replicas_and_with_accumulation_is_ddp(nodes):
    first, *others = on_nodes(node_sharded, nodes)
    assert len(first) == len(SHARDED) * len(RULES)
    for name, (difference, _) in first.items():
        # Adam divides by the root of its second moment, which magnifies the last bits of small gradients.
        assert difference <= (1e-4 if "adam" in name else EXACT), (name, difference)
    assert all(resumed for seen in (first, *others) for _, resumed in seen.values())
