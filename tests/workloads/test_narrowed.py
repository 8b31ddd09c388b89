"""A workload's model at the width of a subnet."""

import pytest

from istbench.base.errors import UserError
from istbench.methods.subnet_footprint import subnets
from istbench.node.registry import build_workload
from istbench.workloads.contract import blank_model
from istbench.workloads.neuron_groups.groups import named_tensors
from istbench.workloads.neuron_groups.layout import layout_of


def sizes(name, options):
    workload = build_workload(name, options)
    groups = workload.neuron_groups(blank_model(workload, data_known=False))
    return {group.name: group.size for group in groups}


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("toy", {"hidden": 30, "layers": 3}),
        ("speech", {"hidden": 100, "layers": 3}),
        ("amazon670k", {"hidden": 64}),
        ("cifar10", {"width": 8, "widen": 3, "widened": "late"}),
        ("imagenet", {"model": "vgg12", "width": 6, "resolution": 32, "widen": 2}),
        ("text", {"width": 24, "heads": 6}),
        ("text", {"width": 24, "heads": 6, "narrow": 2}),
    ],
)
def test_every_group_has_the_units_of_a_subnet(name, options, times):
    workload = build_workload(name, options)
    narrowed = sizes(name, options | workload.narrowed(times))
    wide = sizes(name, options)
    assert narrowed.keys() == wide.keys()
    rounded_up = {group: -(-size // times) for group, size in wide.items()}
    if name == "imagenet":  # its width counts 64th parts of a layer
        rounded_up = {group: size // 6 * -(-6 // times) for group, size in wide.items()}
    assert narrowed == rounded_up


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("toy", {"hidden": 30, "layers": 3, "batch_norm": True}),
        ("speech", {"hidden": 96, "layers": 3}),
        ("amazon670k", {"hidden": 60}),
        ("cifar10", {"width": 12}),
        ("imagenet", {"model": "vgg12", "width": 6, "resolution": 32}),
        ("text", {"width": 24, "heads": 6}),
    ],
)
def test_the_narrow_model_has_the_parameters_and_buffers_of_a_subnet(name, options, nodes):
    workload = build_workload(name, options)
    model = blank_model(workload, data_known=False)
    layout = layout_of(model, workload.neuron_groups(model))
    (subnet,) = subnets(model, layout, nodes, 1)
    narrow = blank_model(build_workload(name, options | workload.narrowed(nodes)), data_known=False)
    ours, theirs = (
        {key: tuple(tensor.shape) for key, tensor in named_tensors(built).items()} for built in (narrow, subnet)
    )
    assert ours == theirs


def test_a_workload_without_a_narrower_model_says_so():
    with pytest.raises(UserError, match="workload 'imagenet' has no option that makes its model narrower"):
        build_workload("imagenet", {"model": "resnet50"}).narrowed(2)
