"""Neuron groups found in chains of layers, and what is no chain."""

import pytest
import torch
from torch import nn

from istbench.workloads.neuron_groups.groups import Slot, permute_units, validate_groups
from istbench.workloads.neuron_groups.structure import chain_groups

STATISTICS = ("weight", "bias", "running_mean", "running_var")


def test_channels_index_their_rows_their_norm_and_their_columns_through_a_flatten():
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Conv2d(4, 5, 3, bias=False),
        nn.Flatten(),
        nn.Linear(5 * 6, 7),
        nn.Tanh(),
        nn.Linear(7, 2),
    )
    first, second, third = chain_groups(model, model, prefix="x.")
    assert (first.name, first.size) == ("x.hidden1", 4)
    assert first.slots == (
        *(Slot(f"0.0.{part}", 0) for part in ("weight", "bias")),
        *(Slot(f"0.1.{part}", 0) for part in STATISTICS),
        Slot("1.weight", 1),
    )
    assert (second.name, second.size) == ("x.hidden2", 5)
    assert second.slots == (Slot("1.weight", 0), Slot("3.weight", 1, 6))
    assert third.slots == (Slot("3.weight", 0), Slot("3.bias", 0), Slot("5.weight", 1))
    validate_groups(model, [first, second, third])


def test_a_norm_after_the_flatten_has_an_entry_a_column():
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, 2), nn.BatchNorm1d(2)
    ).eval()
    (group,) = chain_groups(model, model)
    assert group.slots[2:] == (*(Slot(f"2.{part}", 0, 4) for part in STATISTICS), Slot("4.weight", 1, 4))
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    inputs = torch.randn(5, 2, 6)
    before = model(inputs)
    permute_units(model, group, torch.tensor([1, 2, 0]))
    torch.testing.assert_close(model(inputs), before)


def test_inputs_and_outputs_of_a_chain_are_in_no_group():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    (group,) = chain_groups(model, model)
    assert {slot.tensor for slot in group.slots} == {"1.weight", "1.bias", "3.weight"}


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([nn.Conv2d(4, 4, 3, groups=4)], "0 is a depth-wise convolution"),
        ([nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 3, groups=2)], "1 is a grouped convolution"),
        ([nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)], "1 is a GroupNorm, which may mix"),
        ([nn.Linear(4, 4), nn.LayerNorm(4)], "1 is a LayerNorm, which may mix"),
        ([nn.ConvTranspose2d(4, 4, 3)], "0 is a ConvTranspose2d"),
        ([nn.Conv2d(4, 4, 3), nn.Linear(4, 4)], "1 follows images: is a flatten missing?"),
        ([nn.Linear(4, 4), nn.Conv1d(4, 4, 3)], "1 follows flat vectors"),
        ([nn.Conv2d(4, 4, 3), nn.Conv2d(8, 4, 3)], "1.weight has 8 entries for the 4 units"),
        ([nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(9, 2)], "2.weight has 9 entries for the 4 units"),
        ([nn.Conv2d(4, 4, 3), nn.Flatten(2), nn.Linear(4, 2)], "1 does not flatten all dimensions"),
    ],
)
def test_what_is_no_chain_of_units_is_refused_by_name(layers, says):
    model = nn.Sequential(*layers)
    with pytest.raises(ValueError, match=says):
        chain_groups(model, model)


def test_a_module_of_another_model_is_refused():
    with pytest.raises(ValueError, match="the chain has a Linear that is not in the model"):
        chain_groups(nn.Sequential(nn.Linear(2, 2)), [nn.Linear(2, 2)])
