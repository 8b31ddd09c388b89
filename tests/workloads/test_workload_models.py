"""Models, neuron groups, initial weights and options of the built-in workloads."""

import pytest
import torch
from torch import nn

from istbench.base.errors import UserError
from istbench.node.registry import build_workload
from istbench.workloads.contract import blank_model
from istbench.workloads.initialise import initial_rows, initializers
from istbench.workloads.neuron_groups.groups import permute_units, validate_groups
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.toy import Toy, ToyOptions

WORKLOADS = {
    "speech-2": lambda: Speech(SpeechOptions(hidden=24)),
    "speech-3": lambda: Speech(SpeechOptions(hidden=24, layers=3)),
    "toy": Toy,
    "toy-norm": lambda: Toy(ToyOptions(batch_norm=True, bias=False, layers=3, hidden=7)),
    "toy-1": lambda: Toy(ToyOptions(layers=1)),
}


@pytest.fixture(params=sorted(WORKLOADS))
def workload(request):
    return WORKLOADS[request.param]()


def random_model(workload):
    """The model with every parameter and every statistic random, in eval mode."""
    torch.manual_seed(5)
    model = workload.build_model()
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data.uniform_(0.1, 1.0)
    return model.eval()


def test_permuting_a_group_leaves_the_function_unchanged(workload):
    model = random_model(workload)
    groups = workload.neuron_groups(model)
    inputs = torch.randn(6, next(model.parameters()).shape[1])
    expected = model(inputs)
    for group in groups:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        permute_units(model, group, torch.randperm(group.size).roll(1))
        after = model.state_dict()
        assert any(not torch.equal(after[name], before[name]) for name in before)
        torch.testing.assert_close(model(inputs), expected)


def test_groups_are_valid_and_cover_every_hidden_tensor(workload):
    model = blank_model(workload)
    groups = workload.neuron_groups(model)
    validate_groups(model, groups)
    indexed = {slot.tensor for group in groups for slot in group.slots}
    left = {name for name, _ in model.named_parameters()} - indexed
    assert left <= {"output.bias"}


def test_the_speech_model_is_the_published_one():
    model = blank_model(Speech())
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == {
        "linear1.weight": (4096, 4096),
        "norm1.weight": (4096,),
        "norm1.bias": (4096,),
        "output.weight": (35, 4096),
    }
    last = model.get_submodule("output_norm")
    assert isinstance(last, nn.BatchNorm1d)
    assert not last.affine
    deeper = blank_model(Speech(SpeechOptions(layers=3, hidden=100)))
    assert deeper.get_parameter("linear2.weight").shape == (100, 100)
    assert deeper.get_parameter("output.weight").shape == (35, 100)


def test_initial_rows_are_the_rows_of_the_full_parameter(workload):
    model = blank_model(workload)
    for name, parameter in model.named_parameters():
        full = workload.initial_rows(model, name, None, seed=3)
        assert full.shape == parameter.shape
        rows = torch.randperm(len(full))[: max(1, len(full) // 3)]
        assert torch.equal(workload.initial_rows(model, name, rows, seed=3), full[rows])
        if name.endswith("weight") and full.dim() == 2:
            bound = full.shape[1] ** -0.5
            assert full.abs().max() <= bound
            assert full.abs().max() > 0.8 * bound
            assert not torch.equal(workload.initial_rows(model, name, None, seed=4), full)


def test_normal_initial_values_are_finite_and_standard():
    rule = initializers(nn.Embedding(4, 5))["weight"]
    values = initial_rows(rule, torch.Size([2000, 500]), "weight", None, seed=1)
    assert values.isfinite().all()
    assert abs(values.mean().item()) < 0.01
    assert abs(values.std().item() - 1) < 0.01


@pytest.mark.parametrize(
    ("workload", "wrong", "says"),
    [
        ("speech", {"layers": 4}, "option layers must be one of 2, 3, not 4"),
        ("speech", {"hidden": 0}, "option hidden must be a whole number of at least 1, not 0"),
        ("speech", {"clips_per_word": 1}, "option clips_per_word must be a whole number of at least 2, not 1"),
        ("speech", {"data_seed": -1}, "option data_seed must be a whole number of at least 0, not -1"),
        ("toy", {"hidden": 0}, "option hidden must be a whole number of at least 1, not 0"),
        ("toy", {"classes": 1}, "option classes must be a whole number of at least 2, not 1"),
        ("toy", {"layers": 100_000}, "option layers must be a whole number of at most 1000, not 100000"),
        ("speech", {"clips_per_word": 10**9}, "option clips_per_word must be a whole number of at most 1048576"),
        ("cifar10", {"width": 0}, "option width must be a whole number of at least 1, not 0"),
        ("imagenet", {"resolution": 2000}, "option resolution must be a whole number of at most 1024, not 2000"),
        ("imagenet", {"samples": 0}, "option samples must be a whole number of at least 1, not 0"),
        ("translation", {"hidden": 7}, "hidden must be even"),
    ],
)
def test_options_out_of_range_are_refused(workload, wrong, says):
    with pytest.raises(UserError, match=f"{workload}.*{says}"):
        build_workload(workload, wrong)
