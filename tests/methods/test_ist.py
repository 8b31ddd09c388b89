"""IST without processes: what it refuses before any starts, and what it takes from a checkpoint."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from istbench.base.errors import UserError
from istbench.methods.ist import IndependentSubnetTraining
from istbench.methods.subnet_share import SubnetShare, initial_rows, loaded_shards
from istbench.node.registry import build_method, build_workload
from istbench.workloads.contract import blank_model
from istbench.workloads.neuron_groups.layout import layout_of
from istbench.workloads.neuron_groups.partition import home_partition
from istbench.workloads.neuron_groups.structure import chain_groups


def cut(*layers, nodes=2):
    model = nn.Sequential(*layers)
    workload = SimpleNamespace(
        name="images", neuron_groups=lambda model: chain_groups(model, model), prove_groups=lambda groups: ""
    )
    IndependentSubnetTraining.check(IndependentSubnetTraining.Options(), model, workload, nodes)


def test_a_model_that_cannot_be_cut_is_refused_by_the_name_of_its_layer():
    cut(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    with pytest.raises(UserError, match="workload 'images': 1 is a depth-wise convolution"):
        cut(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 4, 1))


def test_more_nodes_than_channels_are_refused():
    with pytest.raises(UserError, match="'hidden1' has 4 units for 5 nodes"):
        cut(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nodes=5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local_steps": 0}, "local steps of a round, but local_steps=0; set local_steps=2 or more, or use ist"),
        ({"local_steps": 1}, "local steps of a round, but local_steps=1; set local_steps=2 or more, or use ist"),
        ({"local_steps": 5, "flight_steps": 6}, "flight_steps=6 must be less than local_steps=5"),
        ({"local_steps": 5, "flight_steps": 5}, "no node would train the units in flight"),
    ],
)
def test_streaming_that_cannot_be_is_refused(options, said):
    with pytest.raises(UserError, match=said) as refused:
        build_method("streaming_ist", options)
    assert "\n" not in str(refused.value)


def test_layers_that_take_turns_need_a_wave_each():
    workload = build_workload("toy", {"layers": 2})
    model = blank_model(workload)
    for local_steps, flight_steps, fits in ((4, 2, True), (3, 2, False), (2, 1, True)):
        method = build_method("streaming_ist", {"local_steps": local_steps, "flight_steps": flight_steps})
        if fits:
            method.check(method.options, model, workload, 2)
        else:
            with pytest.raises(UserError, match="in 2 turns a round: flight_steps=2 leaves time for 1"):
                method.check(method.options, model, workload, 2)


def test_home_shards_of_a_checkpoint_go_where_they_were_set_up():
    here = torch.empty(3, 4, device="meta")  # stands for a GPU; checkpoints are on the CPU
    loaded = loaded_shards("weight", {"0": torch.ones(3, 4), "1": torch.ones(3, 4)}, here, slots=1)
    assert [plane.device.type for plane in loaded] == ["meta"] * 2


def test_on_one_node_nothing_waits_at_home():
    workload = build_workload("toy", {"layers": 2})
    method = build_method("ist", {"momentum": 0.9}, workload=workload)
    model = blank_model(workload)
    layout = layout_of(model, workload.neuron_groups(model))
    assert any(cut.needs_home for cut in layout.cut)
    fabric, partition = SimpleNamespace(rank=0, world_size=1, device="cpu"), home_partition(layout.groups, 1)
    share = SubnetShare(model, workload, fabric, method.options, layout, partition, layout.names())
    share.fill(partition, initial_rows(model, workload, 0))
    assert not share.home
    assert method.footprint(model, workload, 1, 16).parameters_beside == 0
    assert method.footprint(model, workload, 2, 16).parameters_beside > 0
