"""Storage for a model without values: as torch's own `to_empty` gives it."""

import pytest
import torch
from torch import nn

from istbench.workloads.initialise import with_storage


def awkward() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last), nn.BatchNorm2d(4), nn.LSTM(3, 4)
    )
    model[0].bias.requires_grad_(False)
    buffers = {
        "expanded": torch.zeros(1, 3).expand(5, 3), "empty": torch.zeros(0, 3), "turned": torch.zeros(3, 4).t(),
        "gaps": torch.zeros(4, 6)[:, ::2], "number": torch.zeros((), dtype=torch.float64),
    }  # fmt: skip
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    return model


def layout(model: nn.Module) -> dict[str, tuple[object, ...]]:
    return {
        name: (type(own), own.shape, own.stride(), own.dtype, own.device.type, own.requires_grad)
        for name, own in [*model.named_parameters(), *model.named_buffers()]
    }


@pytest.mark.parametrize(("before", "after"), [("meta", "cpu"), ("cpu", "meta")])
def test_it_has_the_layout_that_torch_gives(before, after):
    own = with_storage(awkward().to(before), torch.device(after))
    assert layout(own) == layout(awkward().to(before).to_empty(device=after))


def test_a_tensor_with_several_names_stays_one():
    model = nn.ModuleList([nn.Linear(3, 3, device="meta"), nn.Linear(3, 3, device="meta")])
    model[1].weight = model[0].weight
    with_storage(model, torch.device("cpu"))
    assert model[1].weight is model[0].weight
    assert model[1].bias is not model[0].bias
