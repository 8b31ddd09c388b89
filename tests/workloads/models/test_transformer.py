"""The transformer: its function, its neuron groups and its initial values."""

import copy
import math

import pytest
import torch
from torch import nn

from istbench.workloads.initialise import initial_rows
from istbench.workloads.models.transformer import Attention, Transformer, initializer, transformer_groups
from istbench.workloads.neuron_groups.groups import permute_units, unindexed, validate_groups
from istbench.workloads.neuron_groups.layout import build_subnet, initial_part, layout_of, subnet_index
from istbench.workloads.neuron_groups.partition import partition_units, units_on

SIZES = {"width": 24, "layers": 2, "heads": 4, "context": 10}
FORMS = [{}, {"bias": True, "tied": False}, {"heads": 1}, {"heads": 24, "bias": True}]


def random_model(**options):
    torch.manual_seed(3)
    model = Transformer(7, **{**SIZES, **options})
    for parameter in model.parameters():
        parameter.data.uniform_(-0.4, 0.6)
    return model.eval()


def test_the_default_sizes_are_nanogpts():
    """0.80 M parameters, as its model counts them: without the positions."""
    with torch.device("meta"):
        model = Transformer(65, width=128, layers=4, heads=4, context=64)
    assert sum(parameter.numel() for parameter in model.parameters()) == 795_904 + 64 * 128


@torch.no_grad()
def test_attention_is_its_definition():
    torch.manual_seed(0)
    attention = Attention(6, 3, 2, dropout=0.0, bias=True)
    x = torch.randn(2, 5, 6)
    heads = []
    for rows in attention.heads.weight.split(6):  # of one head: 2 each of queries, keys and values
        number = len(heads)
        each = x @ rows.T + attention.heads.bias[6 * number : 6 * number + 6]
        queries, keys, values = each.split(2, dim=-1)
        products = queries @ keys.transpose(1, 2) / math.sqrt(2)
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        heads.append(products.masked_fill(later, -math.inf).softmax(-1) @ values)
    expected = attention.projection(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x), expected)


@torch.no_grad()
def test_scores_do_not_see_later_symbols():
    model = random_model()
    symbols = torch.randint(7, (3, 10))
    changed = symbols.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 7
    before, after = model(symbols), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert (before[:, 6:] - after[:, 6:]).abs().min(dim=-1).values.max() > 0
    torch.testing.assert_close(model(symbols[:, :4]), before[:, :4])


def test_tied_weights_are_one_parameter():
    tied, untied = random_model(), random_model(tied=False)
    assert tied.output.weight is tied.embedding.weight
    count = [sum(parameter.numel() for parameter in model.parameters()) for model in (tied, untied)]
    assert count[1] - count[0] == 7 * 24


@torch.no_grad()
@pytest.mark.parametrize("options", FORMS)
def test_permuting_heads_or_hidden_units_changes_nothing(options):
    model = random_model(**options)
    groups = transformer_groups(model)
    validate_groups(model, groups)
    symbols = torch.randint(7, (3, 10))
    expected = model(symbols)
    for group in groups:
        permuted = copy.deepcopy(model)
        permute_units(permuted, group, torch.randperm(group.size).roll(1))
        assert group.size == 1 or any(
            not torch.equal(a, b) for a, b in zip(permuted.parameters(), model.parameters(), strict=True)
        )
        torch.testing.assert_close(permuted(symbols), expected)


def test_a_group_indexes_every_dimension_of_its_units():
    model = random_model(heads=3, bias=True)
    groups = transformer_groups(model)
    assert [group.name for group in groups] == ["block1.heads", "block1.hidden", "block2.heads", "block2.hidden"]
    assert unindexed(model, groups[1], groups) == []
    cut = {tensor.name for tensor in layout_of(model, groups).cut}
    left = {name for name, _ in model.named_parameters()} - cut
    whole = ("norm.weight", "norm.bias", "projection.bias", "perceptron.output.bias", "embedding.weight")
    assert all(name.endswith((*whole, "position.weight")) for name in left)


@torch.no_grad()
def test_a_subnet_of_equal_units_computes_what_the_full_model_does():
    """It has half the heads and hidden units, and doubles their sums."""
    model = random_model(bias=True)
    groups = transformer_groups(model)
    for group in groups:
        for slot in group.slots:
            tensor = model.get_parameter(slot.tensor)
            first = tensor.narrow(slot.dim, 0, slot.block)
            tensor.copy_(torch.cat([first] * group.size, dim=slot.dim))
    partition = partition_units(groups, 2, seed=1, round_index=0)
    with torch.device("meta"):
        blank = Transformer(7, **SIZES, bias=True)
    subnet = build_subnet(blank, groups, units_on(0, partition), torch.device("cpu")).eval()
    assert subnet.output.weight is subnet.embedding.weight
    values = dict(model.named_parameters())
    for cut in layout_of(model, groups).cut:
        rows = lambda name, wanted: values[name] if wanted is None else values[name][wanted]  # noqa: E731
        subnet.get_parameter(cut.name).copy_(initial_part(cut, subnet_index(cut, partition, 0), rows))
    for name in layout_of(model, groups).replicated:
        subnet.get_parameter(name).copy_(values[name])
    symbols = torch.randint(7, (3, 10))
    assert subnet.blocks[0].attention.heads.weight.shape == (36, 24)
    torch.testing.assert_close(subnet(symbols), model(symbols))


def test_dropout_acts_in_training_only():
    model = random_model(dropout=0.5)
    symbols = torch.randint(7, (3, 10))
    assert torch.equal(model(symbols), model(symbols))
    model.train()
    assert not torch.equal(model(symbols), model(symbols))


def test_initial_values_are_gpt2s():
    def values(name, shape):
        return initial_rows(initializer(name, 8), torch.Size(shape), name, None, seed=0)

    assert values("embedding.weight", [400, 100]).std() == pytest.approx(0.02, rel=0.02)
    assert values("blocks.0.perceptron.hidden.weight", [400, 100]).std() == pytest.approx(0.02, rel=0.02)
    for adds in ("blocks.3.attention.projection.weight", "blocks.3.perceptron.output.weight"):
        assert values(adds, [400, 100]).std() == pytest.approx(0.005, rel=0.02)
    assert (
        values("norm.weight", [5]).tolist() == values("blocks.0.attention_norm.weight", [5]).tolist() == [1.0] * 5
    )
    assert values("norm.bias", [5]).tolist() == values("blocks.0.attention.heads.bias", [5]).tolist() == [0.0] * 5


def test_every_parameter_of_the_model_has_an_initial_value_of_its_kind():
    model = Transformer(7, **SIZES, bias=True, tied=False)
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    for name, _ in model.named_parameters():
        module, _, kind = name.rpartition(".")
        constant = 0.0 if kind == "bias" else 1.0 if module in norms else None
        rule = initializer(name, 2)
        assert rule.kind == ("normal" if constant is None else "constant")
        assert constant is None or rule.scale == constant
