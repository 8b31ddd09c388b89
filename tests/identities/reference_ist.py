"""Independent Subnet Training in one process on a full model: slow, short, and easy to believe."""

import copy

import torch
from torch import nn

from istbench.methods.base import materialise
from istbench.optimizer import OptimizerOptions
from istbench.subnets.groups import named_tensors
from istbench.subnets.layout import build_subnet, layout_of, select, subnet_index, write
from istbench.subnets.partition import partition_units
from istbench.workloads.base import Workload
from istbench.workloads.batches import ShardedBatches


def reference_ist(
    workload: Workload, options: OptimizerOptions, *, nodes: int, local_steps: int, steps: int, seed: int
) -> nn.Module:
    """The full model after `steps` local steps: at every round's end subnets are cut from it and written back."""
    with torch.device("meta"):
        meta = workload.build_model()
    groups = workload.neuron_groups(meta)
    layout = layout_of(meta, groups)
    full = materialise(copy.deepcopy(meta), workload, seed, torch.device("cpu"))
    momenta = {name: torch.zeros_like(tensor) for name, tensor in named_tensors(full).items()}
    shards = [
        ShardedBatches(workload.train_size, workload.batch_size, rank=rank, world_size=nodes, seed=seed)
        for rank in range(nodes)
    ]
    for round_index, first in enumerate(range(0, steps, local_steps)):
        partition = partition_units(groups, nodes, seed=seed, round_index=round_index)
        trained = []
        for node in range(nodes):
            subnet = build_subnet(meta, groups, partition, node, torch.device("cpu"))
            _copy_in(subnet, full, layout, partition, node)
            optimizer = options.build(subnet.parameters())
            if first:
                for name, parameter in subnet.named_parameters():
                    optimizer.state[parameter]["momentum_buffer"] = _cut(
                        momenta[name], name, layout, partition, node
                    )
            for step in range(first, min(first + local_steps, steps)):
                optimizer.zero_grad()
                batch = workload.train_batch(shards[node].indices(step), shards[node].generator(step))
                workload.loss(subnet, batch).backward()
                optimizer.step()
            # A parameter that had no gradient so far has no momentum yet, which is zero.
            state = {
                n: optimizer.state[p].get("momentum_buffer", torch.zeros_like(p))
                for n, p in subnet.named_parameters()
            }
            trained.append((dict(subnet.named_parameters()), state))
        _write_back(full, momenta, trained, layout, partition)
    return full


def _cut(tensor, name, layout, partition, node):
    for cut in layout.cut:
        if cut.name == name:
            return select(tensor, cut.axes, subnet_index(cut, partition, node))
    return tensor.clone()


@torch.no_grad()
def _copy_in(subnet, full, layout, partition, node):
    whole = named_tensors(full)
    for name, parameter in subnet.named_parameters():
        parameter.copy_(_cut(whole[name], name, layout, partition, node))
    for module in subnet.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()


@torch.no_grad()
def _write_back(full, momenta, trained, layout, partition):
    whole = named_tensors(full)
    for node, (parameters, state) in enumerate(trained):
        for cut in layout.cut:
            index = subnet_index(cut, partition, node)
            write(whole[cut.name], cut.axes, index, parameters[cut.name])
            write(momenta[cut.name], cut.axes, index, state[cut.name])
    for name in layout.replicated:
        whole[name].copy_(torch.stack([parameters[name] for parameters, _ in trained]).mean(0))
        momenta[name].copy_(torch.stack([state[name] for _, state in trained]).mean(0))
