"""A workload's model at the width of a subnet."""

import pytest

from istbench.errors import UserError
from istbench.registry import build_workload
from istbench.workloads.contract import blank_model


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


def test_a_workload_without_a_narrower_model_says_so():
    with pytest.raises(UserError, match="workload 'imagenet' has no option that makes its model narrower"):
        build_workload("imagenet", {"model": "resnet50"}).narrowed(2)
