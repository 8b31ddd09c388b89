"""Which parameters `fsdp` gathers at once, and how they are cut and dealt out."""

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from istbench.base.errors import UserError
from istbench.methods.fsdp import FullySharded
from istbench.methods.planned_node import dealt_out
from istbench.methods.sharded_groups import PlannedGroups, gathered_modules, shard_rows
from istbench.methods.zero import ZeroRedundancy
from istbench.workloads.models.resnet import cifar_resnet18
from istbench.workloads.toy import Toy


def names(model, least):
    of = {module: name for name, module in model.named_modules()}
    return [of[module] for module in gathered_modules(model, least)]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([Block(8), Block(16)])
        self.table = nn.Embedding(30, 8)
        self.last = nn.Linear(8, 30, bias=False)
        self.last.weight = self.table.weight


def test_blocks_are_large_children_and_elements_of_containers_in_the_models_order():
    assert names(Blocks(), 1) == ["first", "blocks.0", "blocks.1"]  # nothing within a block, nothing that is shared
    assert names(Blocks(), 144) == ["blocks.0", "blocks.1"]
    assert names(Blocks(), 145) == ["blocks.1"]
    assert names(Blocks(), 10**6) == []


def test_a_block_within_a_block_counts_by_itself():
    model = nn.Sequential(nn.Linear(2, 2), Blocks())
    assert names(model, 100) == ["1", "1.blocks.0", "1.blocks.1"]  # what is left of it is the embedding's
    with torch.device("meta"):
        resnet = cifar_resnet18(64, 10)
    assert names(resnet, 1_000_000) == ["block3_2", "block4_1", "block4_2"]  # of residual blocks the widest
    groups = PlannedGroups.of(resnet, 1_000_000, 3, 3, ahead=True)
    assert sum(groups.gathered) >= 4 * sum(parameter.numel() for parameter in resnet.parameters())


@pytest.mark.parametrize(("rows", "nodes"), [(10, 3), (2, 4), (1, 1), (9, 3), (5, 4)])
def test_rows_are_cut_as_torch_cuts_them(rows, nodes):
    cut = [list(shard_rows(rows, rank, nodes)) for rank in range(nodes)]
    chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(nodes)]
    assert cut == [*chunks, *[[]] * (nodes - len(chunks))]


def test_parameters_are_dealt_out_as_torch_deals_them_out():
    parameters = [nn.Parameter(torch.empty(size)) for size in (7, 3, 3, 9, 1, 9, 2, 4)]
    torchs = ZeroRedundancyOptimizer.__new__(ZeroRedundancyOptimizer)
    torchs.world_size, torchs.param_groups = 3, [{"params": parameters}]
    torchs._partition_parameters_cache = []
    wanted = [[id(p) for p in groups[0]["params"]] for groups in torchs._partition_parameters()]
    dealt = dealt_out([parameter.numel() for parameter in parameters], 3)
    assert [[id(parameters[number]) for number in share] for share in dealt] == wanted


def test_what_torch_cannot_shard_is_refused_in_one_line():
    scalar, mixed = nn.Linear(2, 2), nn.Linear(2, 2)
    scalar.scale = nn.Parameter(torch.tensor(1.0))
    mixed.other = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(UserError, match="'toy' has a single number, scale"):
        FullySharded.check(FullySharded.Options(), scalar, Toy(), 2)
    with pytest.raises(UserError, match="'toy' has a parameter without values, weight; use ddp"):
        FullySharded.check(FullySharded.Options(), nn.Linear(0, 2), Toy(), 2)
    with pytest.raises(UserError, match=r"'toy' has torch.float32, torch.float64"):
        ZeroRedundancy.check(ZeroRedundancy.Options(), mixed, Toy(), 2)
