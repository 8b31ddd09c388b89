"""Accumulation, compression and warm-up against their definitions. Functions named `node_*` run on every node."""

import copy

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from istbench.base.errors import UserError
from istbench.base.seeds import derived_seed
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.data_parallel import DataParallel
from istbench.node.digest import weights_sha256
from istbench.studies.conformance.training import (
    assembled,
    batches_of,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    train,
)
from istbench.workloads.batches import ShardedBatches

EXACT = 2e-5  # float32 sums in another order, over some steps
TOY = {"hidden": 32, "layers": 2}
STEPS, COUNT = 8, 3  # the last round stays open
OPTIMIZERS = {
    "momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "cosine, clipped": {"lr": 0.1, "schedule": "cosine", "warmup": 0.2, "clip": 0.2},
}
LOW = {"compress": "powersgd", "rank": 3, "least_compression": 1.0}
HOOKS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
FAR = {
    "plain": {},
    "bf16": {"compress": "bf16"},
    "powersgd": {"compress": "powersgd", "rank": 2, "least_compression": 0.0},
    "accumulated": {"accumulate": COUNT},
}
WARM = {"local_steps": 4, "ddp_rounds": 2, "lr": 0.1, "momentum": 0.9}


def node_all(fabric):
    """What each of these saw on rank 0, by name."""
    workload = open_workload("toy", TOY)
    return {
        "accumulated": accumulated_against_joined(fabric, workload),
        "zero": zero_against_ddp(fabric, workload),
        "full rank": full_rank_against_ddp(fabric, workload),
        "far": {name: far_against_near(fabric, workload, own) for name, own in FAR.items()},
        "torch": {name: against_hook_of_torch(fabric, workload, name) for name in ("bf16", "fp16", "powersgd")},
        "warm": warm_up_against_ddp(fabric, workload),
    }


@pytest.fixture(scope="module", params=[2, 3])
def seen(request):
    """What rank 0 of 2 and 3 nodes saw."""
    return on_nodes(node_all, request.param)[0]


def joined(workload, options, nodes):
    """One process that steps on the minibatches of a round of all nodes at once."""
    model = plain_training(workload, options, 0)
    optimizer = options.build(model.parameters())
    shards = [
        ShardedBatches(workload.train_size, workload.batch_size, rank=rank, world_size=nodes, seed=0)
        for rank in range(nodes)
    ]
    for first in range(0, STEPS, COUNT):
        last = min(first + COUNT, STEPS)
        indices = torch.cat([shard.indices(step) for shard in shards for step in range(first, last)])
        optimizer.zero_grad()
        workload.loss(model, workload.train_batch(indices, torch.Generator())).backward()
        options.clip_gradients(model.parameters())
        for group in optimizer.param_groups:
            group["lr"] = options.rate_at(last - 1, STEPS)
        optimizer.step()
    return model


def accumulated_against_joined(fabric, workload):
    """By optimizer: the difference inside a round, and whether closing the round gives the assembled model."""
    found = {}
    for name, options in OPTIMIZERS.items():
        method = set_up(fabric, workload, "ddp", {**options, "accumulate": COUNT}, steps=STEPS)
        train(fabric, workload, method, 0, STEPS)
        inside = assembled(fabric, method)
        method.close_round()
        closed = assembled(fabric, method)
        if inside is not None:
            wanted = joined(workload, DataParallel.Options(**options), fabric.world_size)
            same = weights_sha256(inside) == weights_sha256(closed)
            found[name] = [largest_difference(inside, wanted), same]
    return found


def test_accumulated_gradients_are_those_of_the_joined_minibatch(seen):
    assert seen["accumulated"].keys() == OPTIMIZERS.keys()
    for difference, same in seen["accumulated"].values():
        assert difference < EXACT
        assert same


def zero_against_ddp(fabric, workload):
    weights = []
    for name in ("zero", "ddp"):
        method = set_up(fabric, workload, name, {**OPTIMIZERS["momentum"], "accumulate": COUNT})
        train(fabric, workload, method, 0, STEPS)
        model = assembled(fabric, method)
        weights.append(None if model is None else weights_sha256(model))
    return weights[0] == weights[1]


def test_zero_accumulates_as_ddp_does(seen):
    assert seen["zero"]


def far_against_near(fabric, workload, options):
    """What changes where nodes take their means in turns.

    The largest difference of weights, the bytes of each way, and whether a trace of each has the same operations.
    """
    models, sent, posted = [], [], ([], [])
    record = fabric.recorder.post
    for fabric.far in (False, True):
        before, own = fabric.traffic["training"].sent, posted[fabric.far]
        fabric.recorder.post = lambda kind, size, *_, own=own: own.append((kind, size)) or -1
        method = set_up(fabric, workload, "ddp", {**OPTIMIZERS["momentum"], "bucket_mb": 0.001, **options})
        train(fabric, workload, method, 0, STEPS)
        sent.append(fabric.traffic["training"].sent - before)
        models.append(copy.deepcopy(assembled(fabric, method)))
    fabric.far, fabric.recorder.post = False, record
    return None if models[0] is None else (largest_difference(*models), sent, posted[0] == posted[1] != [])


@pytest.mark.parametrize("name", sorted(FAR))
def test_distant_nodes_average_gradients_in_turns_to_the_same_weights(seen, name):
    difference, (near, far), same_trace = seen["far"][name]
    assert same_trace
    assert difference < (5e-3 if name in ("bf16", "powersgd") else EXACT)
    assert near <= far <= 2 * near


def full_rank_against_ddp(fabric, workload):
    models = []
    for options in ({}, {"compress": "powersgd", "rank": 32, "least_compression": 0.0, "bucket_mb": 0.001}):
        method = set_up(fabric, workload, "ddp", {"lr": 0.1, "momentum": 0.9, **options})
        train(fabric, workload, method, 0, STEPS)
        models.append(assembled(fabric, method))
    late = {"compress": "powersgd", "rank": 1, "least_compression": 0.0, "start_compress": STEPS}
    waiting = set_up(fabric, workload, "ddp", {"lr": 0.1, "momentum": 0.9, **late})
    train(fabric, workload, waiting, 0, STEPS)
    models.append(assembled(fabric, waiting))
    errors = [kept.numel() for kept in method.state_dict()["powersgd"]["errors"].values()]
    if models[0] is None:
        return None
    plain, full, not_yet = models
    return [largest_difference(plain, full), errors, largest_difference(plain, not_yet)]


def test_powersgd_of_full_rank_in_several_buckets_is_ddp(seen):
    difference, errors, before_it_starts = seen["full rank"]
    assert before_it_starts == 0
    assert difference < EXACT
    assert len(errors) > 1  # buckets
    assert sum(errors) == 32 * (8 + 32 + 4)


def against_hook_of_torch(fabric, workload, name):
    """How far `compress` is from a loop over DistributedDataParallel with the hook of torch, and from `ddp`."""
    options = {"lr": 0.1, "momentum": 0.9}
    own = LOW if name == "powersgd" else {"compress": name}
    models = []
    for given in (own, {}):
        method = set_up(fabric, workload, "ddp", {**options, **given})
        train(fabric, workload, method, 0, STEPS)
        models.append(assembled(fabric, method))
    mine = with_hook_of_torch(fabric, workload, name, DataParallel.Options(**options))
    return None if models[0] is None else [largest_difference(models[0], mine), largest_difference(*models)]


def with_hook_of_torch(fabric, workload, name, options):
    model = plain_training(workload, options, 0)
    optimizer = options.build(model.parameters())
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    state = None
    if name == "powersgd":
        state = PowerSGDState(
            None, matrix_approximation_rank=3, start_powerSGD_iter=2, min_compression_rate=1.0, random_seed=0
        )
        replica.register_comm_hook(state, powerSGD_hook)
    else:
        replica.register_comm_hook(None, HOOKS[name])
    batches = batches_of(fabric, workload, DataParallel)
    workload.loss(replica, workload.train_batch(torch.arange(2), torch.Generator())).backward()
    if state is not None:
        state.iter = 2  # it compresses from here on, with the factors of ours
        matrices = [own for own in model.parameters() if own.dim() > 1]
        count = sum(3 * own.shape[1] for own in matrices)
        state.p_memory_dict[0] = torch.empty(sum(3 * len(own) for own in matrices))
        generator = torch.Generator().manual_seed(derived_seed(0, "powersgd", "0"))
        state.q_memory_dict[0] = torch.randn(count, generator=generator)
    for step in range(STEPS):
        optimizer.zero_grad()
        workload.loss(replica, workload.train_batch(batches.indices(step), batches.generator(step))).backward()
        optimizer.step()
    return model


def test_compressed_gradients_are_those_of_the_hooks_of_torch(seen):
    assert seen["torch"].keys() == {"bf16", "fp16", "powersgd"}
    for name, (difference, effect) in seen["torch"].items():
        assert difference <= (EXACT if name == "powersgd" else 0), name
        assert effect > EXACT, name  # it is not `ddp`


def warm_up_against_ddp(fabric, workload):
    """In the warm-up: the difference from `ddp`. After it: from rounds that start there."""
    given = {name: WARM[name] for name in ("lr", "momentum")}
    warm = WARM["local_steps"] * WARM["ddp_rounds"]
    method = set_up(fabric, workload, "local_sgd", WARM)
    train(fabric, workload, method, 0, warm - 1)
    inside = assembled(fabric, method)
    ddp = set_up(fabric, workload, "ddp", given)
    train(fabric, workload, ddp, 0, warm - 1)
    wanted = copy.deepcopy(assembled(fabric, ddp))
    before = fabric.traffic["training"].sent
    train(fabric, workload, method, warm - 1, warm)
    last = fabric.traffic["training"].sent - before
    train(fabric, workload, ddp, warm - 1, warm)
    alike = [len(set(fabric.numbers(float(own.double().sum())))) == 1 for own in momenta_of(method)]
    theirs = zip(momenta_of(method), momenta_of(ddp), strict=True)
    momenta = [all(alike), max(float((own - other).abs().max()) for own, other in theirs)]
    state = copy.deepcopy(method.state_dict())
    later = set_up(fabric, workload, "local_sgd", {**given, "local_steps": WARM["local_steps"]})
    later.load_state_dict(state)
    sent = fabric.traffic["training"].sent
    train(fabric, workload, method, warm, warm + 6)
    once = fabric.traffic["training"].sent - sent
    momenta.append(any(len(set(fabric.numbers(float(own.double().sum())))) > 1 for own in momenta_of(method)))
    train(fabric, workload, later, warm, warm + 6)
    ends = [assembled(fabric, own) for own in (method, later)]
    if inside is None:
        return None
    model = sum(own.numel() for own in inside.parameters()) * 4
    rings = [sent * fabric.world_size / (2 * (fabric.world_size - 1) * model) for sent in (once, last)]
    same = weights_sha256(ends[0]) == weights_sha256(ends[1])
    return [largest_difference(inside, wanted), same, *rings, *momenta]


def momenta_of(method):
    state = method.state_dict()["optimizer"]["state"]
    return [state[str(place)]["momentum_buffer"] for place in range(len(state))]


def test_a_warm_up_of_local_sgd_is_ddp_and_then_its_rounds(seen):
    difference, same, rings, _, _, _, _ = seen["warm"]
    assert difference < EXACT
    assert same
    assert rings == pytest.approx(1, abs=1e-3)  # one average in the round after the warm-up


def test_at_the_end_of_the_warm_up_all_nodes_have_the_momenta_of_ddp_once(seen):
    _, _, _, last_rings, alike, difference, differ_later = seen["warm"]
    assert alike
    assert difference < EXACT
    assert last_rings == pytest.approx(2, abs=1e-3)  # the model, and as many values of momentum
    assert differ_later


def test_options_of_powersgd_are_refused_without_it():
    for options in ({"rank": 2}, {"compress": "bf16", "start_compress": 5}, {"least_compression": 1.0}):
        with pytest.raises(UserError, match="is an option of compress=powersgd"):
            DataParallel.Options(**options)
    assert DataParallel.Options(compress="powersgd", rank=2, start_compress=5).rank == 2
