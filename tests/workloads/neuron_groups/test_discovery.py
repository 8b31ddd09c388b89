"""Neuron groups found in one run of any model, and the layers that stay whole."""

import copy
import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from istbench.workloads.amazon670k import Amazon670k, Amazon670kOptions
from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.resnet import cifar_resnet18, resnet_groups
from istbench.workloads.models.vgg import vgg12, vgg_groups
from istbench.workloads.neuron_groups.cut_attention import keep_head_size
from istbench.workloads.neuron_groups.discovery import discover_groups
from istbench.workloads.neuron_groups.groups import Attribute, NeuronGroup, Slot, named_tensors, permute_units
from istbench.workloads.neuron_groups.layout import build_subnet
from istbench.workloads.neuron_groups.partition import partition_units, units_on
from istbench.workloads.neuron_groups.structure import chain_groups
from istbench.workloads.speech import FEATURES, Speech, SpeechOptions
from istbench.workloads.text import Text, TextOptions
from istbench.workloads.toy import Toy, ToyOptions

NORM = ("weight", "bias", "running_mean", "running_var")


class Net(nn.Module):
    """A model with `layers` by name, whose forward pass is `compute(model, x)`."""

    def __init__(self, compute, **layers):
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.compute(self, x)


def images(pixels=8):
    return torch.randn(3, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))


def discovered(model, *inputs, **said):
    return discover_groups(model, lambda model: model(*inputs), **said)


def sets(groups):
    """Sizes and slots of groups, without their names and order."""
    return {(group.size, frozenset(group.slots)) for group in groups}


def names(found):
    return [group.name for group in found.groups]


def reasons(found):
    return {whole.module: whole.reason for whole in found.left_whole}


def rows(*layers):
    """Slots of the rows of `layers`, with biases."""
    return [Slot(f"{layer}.{part}", 0) for layer in layers for part in ("weight", "bias")]


# Chains.


def test_hidden_layers_are_groups_and_the_model_stays_as_it_is():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
    before = copy.deepcopy(model.state_dict())
    found = discovered(model, torch.randn(4, 6))
    assert names(found) == ["0", "3"]
    assert [group.slots for group in found.groups] == [
        (*rows("0"), Slot("3.weight", 1)),
        (*rows("3"), Slot("5.weight", 1)),
    ]
    assert not found.left_whole
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


def test_a_single_layer_stays_whole_between_inputs_and_outputs():
    found = discovered(nn.Linear(6, 3), torch.randn(4, 6))
    assert not found.groups
    assert reasons(found) == {"": "its outputs are the outputs of the network"}


@pytest.mark.parametrize("prove", [True, False], ids=["proved", "on the meta device"])
@pytest.mark.parametrize("name", ["toy", "toy-norm", "speech", "resnet18", "vgg12", "vgg12 of 64 pixels"])
def test_the_groups_of_the_built_in_workloads_are_found(name, prove):
    toy = Toy(ToyOptions(batch_norm=name == "toy-norm", layers=3, hidden=7))
    speech = Speech(SpeechOptions(layers=3, hidden=24))
    build, shape, groups_of = {
        "toy": (toy.build_model, (4, 8), toy.neuron_groups),
        "toy-norm": (toy.build_model, (4, 8), toy.neuron_groups),
        "speech": (speech.build_model, (4, FEATURES), speech.neuron_groups),
        "resnet18": (lambda: cifar_resnet18(2, 5), (3, 3, 8, 8), resnet_groups),
        "vgg12": (lambda: vgg12(2, 5, 32), (3, 3, 32, 32), vgg_groups),
        "vgg12 of 64 pixels": (lambda: vgg12(2, 5, 64), (3, 3, 64, 64), vgg_groups),
    }[name]
    with torch.device("cpu" if prove else "meta"):
        model = build()
        found = discovered(model, torch.randn(shape), prove=prove)
    assert sets(found.groups) == sets(groups_of(model))


@pytest.mark.parametrize("prove", [True, False], ids=["proved", "on the meta device"])
def test_the_groups_of_amazon670k_are_found_in_a_sum_of_weighted_embeddings(prove):
    workload = Amazon670k(Amazon670kOptions(features=30, hidden=6, labels=20))
    with torch.device("cpu" if prove else "meta"):
        model = workload.build_model()
        for parameter in model.input.parameters():
            nn.init.normal_(parameter)
        rows = SparseBatch(torch.arange(0, 13, 4), torch.randint(30, (12,)), torch.rand(12), 30)
        found = discovered(model, rows, prove=prove)
    assert sets(found.groups) == sets(workload.neuron_groups(model))


@pytest.mark.parametrize("prove", [True, False], ids=["proved", "on the meta device"])
def test_the_groups_of_text_are_found_with_the_sums_that_add_to_the_stream(prove):
    text = Text(TextOptions(width=12, layers=2, heads=3, context=8))
    with torch.device("cpu" if prove else "meta"):
        model = text.build_model()
        found = discovered(model, torch.randint(256, (3, 8)), prove=prove)
    groups = text.neuron_groups(model)
    assert sets(found.groups) == sets(groups)
    assert [(group.sums, group.scales_itself) for group in found.groups] == [(one.sums, False) for one in groups]


def test_a_flatten_gives_a_channel_several_columns():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 5))
    assert sets(discovered(model, images()).groups) == {(4, frozenset([*rows("0"), Slot("3.weight", 1, 9)]))}


def test_an_embedding_of_a_hidden_layer_is_dealt_by_columns():
    model = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.ReLU(), nn.Linear(18, 2))
    found = discovered(model, torch.randint(9, (4, 3)))
    assert sets(found.groups) == {(6, frozenset([Slot("0.weight", 1), Slot("3.weight", 1, 1, 3)]))}


ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.SiLU, nn.Mish, nn.Hardtanh, nn.Hardswish),
    *(nn.Hardsigmoid, nn.GELU, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softshrink, nn.Hardshrink),
)


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_an_activation_keeps_units_apart(kind):
    for said in [{}, {"inplace": True}] if "inplace" in inspect.signature(kind).parameters else [{}]:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(3, 4), kind(**said), nn.Linear(4, 2))
            assert names(discovered(model, torch.randn(2, 3), prove=False)) == ["0"]


# Convolutions.


class Block(nn.Module):
    def __init__(self, channels, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 3, stride, padding=1)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, channels, 3, padding=1)
        self.skip = nn.Conv2d(channels, channels, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.norm1(self.conv1(x)))) + self.skip(x), inplace=True)


def test_a_residual_stream_stays_whole():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Block(4), Block(4, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(4, 2))
    found = discovered(model, images())
    inner = [*rows("1.conv1", "1.norm1"), *(Slot(f"1.norm1.{part}", 0) for part in NORM), Slot("1.conv2.weight", 1)]
    assert found.groups[0].name == "1.conv1"
    assert set(found.groups[0].slots) == set(inner)
    assert reasons(found)["0"] == "its outputs are part of the residual stream added in 1"
    assert not any(slot.tensor == "0.weight" for group in found.groups for slot in group.slots)


def test_a_depth_wise_convolution_is_dealt_with_its_channels():
    layers = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.BatchNorm2d(6), nn.ReLU6(), nn.Conv2d(6, 4, 1)
    (group,) = discovered(nn.Sequential(*layers), images()).groups
    norm = [Slot(f"2.{part}", 0) for part in NORM]
    assert set(group.slots) == {*rows("0", "1"), *norm, Slot("4.weight", 1)}
    assert group.attributes == (Attribute("1", "groups"),)


def test_grouped_convolutions_and_normalisations_are_dealt_by_groups():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=4), nn.Conv2d(12, 6, 1))
    model.extend([nn.GroupNorm(3, 6), nn.Conv2d(6, 2, 1)])
    first, second = discovered(model, images()).groups
    assert first.size == 4
    assert set(first.slots) == {
        *(Slot(f"0.{part}", 0, 2) for part in ("weight", "bias")),
        *(Slot(f"1.{part}", 0, 3) for part in ("weight", "bias")),
        Slot("2.weight", 1, 3),
    }
    assert first.attributes == (Attribute("1", "groups"),)
    assert second.size == 3
    assert Slot("3.weight", 0, 2) in second.slots
    assert second.attributes == (Attribute("3", "num_groups"),)


def test_a_transposed_convolution_has_its_outputs_in_the_second_dimension():
    model = nn.Sequential(nn.ConvTranspose2d(3, 6, 2), nn.ReLU(), nn.ConvTranspose2d(6, 2, 2))
    (group,) = discovered(model, images()).groups
    assert set(group.slots) == {Slot("0.weight", 1), Slot("0.bias", 0), Slot("2.weight", 0)}


def test_a_channel_shuffle_binds_channels_into_units():
    def shuffled(net, x):
        x = net.first(x)
        b, c, h, w = x.shape
        return net.last(x.view(b, 3, c // 3, h, w).transpose(1, 2).reshape(b, c, h, w))

    model = Net(shuffled, first=nn.Conv2d(3, 12, 1), last=nn.Conv2d(12, 2, 1))
    (group,) = discovered(model, images()).groups
    assert group.size == 4
    assert set(group.slots) == {
        Slot("first.weight", 0, 1, 3),
        Slot("first.bias", 0, 1, 3),
        Slot("last.weight", 1, 3),
    }


def test_torchs_channel_shuffle_binds_channels_too():
    model = nn.Sequential(nn.Conv2d(3, 12, 1), nn.ChannelShuffle(3), nn.Conv2d(12, 2, 1))
    (group,) = discovered(model, images()).groups
    assert group.size == 4
    assert set(group.slots) == {Slot("0.weight", 0, 1, 3), Slot("0.bias", 0, 1, 3), Slot("2.weight", 1, 3)}


def test_the_channels_that_a_gate_scales_are_one_group():
    def squeeze_and_excitation(net, x):
        x = net.first(x)
        return net.last(x * torch.sigmoid(net.more(F.silu(net.less(x.mean((2, 3))))))[..., None, None])

    layers = {"first": nn.Conv2d(3, 8, 3), "less": nn.Linear(8, 4), "more": nn.Linear(4, 8)}
    model = Net(squeeze_and_excitation, **layers, last=nn.Conv2d(8, 2, 3))
    channels, squeezed = discovered(model, images()).groups
    assert set(channels.slots) == {*rows("first", "more"), Slot("less.weight", 1), Slot("last.weight", 1)}
    assert set(squeezed.slots) == {*rows("less"), Slot("more.weight", 1)}


def test_concatenated_channels_stay_whole():
    layers = {"left": nn.Conv2d(3, 4, 1), "right": nn.Conv2d(3, 5, 1), "last": nn.Conv2d(9, 2, 1)}
    model = Net(lambda net, x: net.last(torch.cat([net.left(x), net.right(x)], 1)), **layers)
    found = discovered(model, images())
    assert not found.groups
    assert reasons(found)["left"] == "its outputs are concatenated with others in the model"


# Units that are mixed.


@pytest.mark.parametrize(
    ("mixes", "reason"),
    [
        (nn.LayerNorm(8), "normalised together in 1"),
        (nn.Softmax(-1), "used together by softmax in 1"),
        (nn.RMSNorm(8), "normalised together in 1|reduced by mean in 1"),
        (nn.GRU(8, 8), "those of a recurrent layer"),
    ],
)
def test_units_that_a_layer_mixes_stay_whole(mixes, reason):
    class Mixed(nn.Sequential):
        def forward(self, x):
            x = self[1](self[0](x))
            return self[2](x[0] if isinstance(x, tuple) else x)

    found = discovered(Mixed(nn.Linear(3, 8), mixes, nn.Linear(8, 2)), torch.randn(4, 3))
    assert not found.groups
    assert any(reason.endswith(part) for part in reason.split("|") for reason in [reasons(found)["0"]])


def test_a_mean_over_units_depends_on_their_number():
    model = Net(
        lambda net, x: net.last(net.first(x).mean(1, keepdim=True)), first=nn.Linear(3, 8), last=nn.Linear(1, 2)
    )
    assert reasons(discovered(model, torch.randn(4, 3)))["first"] == "its outputs are reduced by mean in the model"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        # The number of a unit, which no parameter or buffer holds.
        (lambda x: torch.tanh(x + torch.arange(x.shape[1])), "another order of its units changes the result"),
        # A subnet computes something else.
        (lambda x: x / math.sqrt(x.shape[1]), "differs by"),
    ],
    ids=["numbers of units", "number of units"],
)
def test_the_proof_finds_units_that_are_not_interchangeable(change, reason):
    model = Net(lambda net, x: net.last(change(net.first(x))), first=nn.Linear(3, 8), last=nn.Linear(8, 2))
    found = discovered(model, torch.randn(4, 3))
    assert not found.groups
    assert reason in reasons(found)["first"]


def test_a_size_written_into_the_code_keeps_one_layer_whole_and_is_named():
    layers = {"first": nn.Conv2d(3, 4, 3), "good": nn.Linear(4 * 36, 5), "last": nn.Linear(5, 2)}
    found = discovered(Net(lambda net, x: net.last(net.good(net.first(x).view(-1, 144))), **layers), images())
    assert names(found) == ["good"]
    assert "a subnet with some of its units fails: test_discovery.py:" in reasons(found)["first"]


# Weights that are shared, unused or read.


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner, self.outer = nn.Embedding(9, 6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.again, self.square, self.output = (
            nn.Linear(6, 6, bias=False),
            nn.Linear(6, 6),
            nn.Linear(6, 9, bias=False),
        )
        self.output.weight = self.words.weight
        self.again.weight = self.square.weight

    def forward(self, x):
        x = self.outer(F.gelu(self.inner(self.words(x))))
        return self.output(torch.tanh(self.again(torch.tanh(self.square(torch.tanh(x))))))


def test_shared_weights_stay_together():
    found = discovered(Shared(), torch.randint(9, (4, 3)))
    assert names(found) == ["inner"]
    assert "rows and columns of again.weight at once" in reasons(found)["square"]
    assert reasons(found).keys() == {"words", "again", "square", "output"}


def test_the_block_and_the_operation_that_leave_no_group_are_named_first_and_once():
    def block(change):
        """A residual block; `change` mixes its hidden units."""
        return Net(lambda net, x: x + net.down(change(net.up(x))), up=nn.Linear(6, 8), down=nn.Linear(8, 6))

    blocks = [block(lambda x: x.sort(-1).values) for _ in range(3)]
    uneven = block(lambda x: torch.cat(x.split([3, 5], -1), -1))
    model = nn.Sequential(nn.Embedding(9, 6), *blocks, uneven, nn.Linear(6, 9))
    found = discovered(model, torch.randint(9, (4, 3)))
    assert not found.groups
    assert found.obstacles()[:2] == [
        "1.up and 2 alike: its outputs are used by sort in 1",
        "4.up: its outputs are used in parts by split_with_sizes in 4",
    ]
    assert found.obstacles()[-1].startswith("5: its outputs are the outputs of the network")


@pytest.mark.parametrize("frozen", [False, True])
def test_units_that_change_no_result_are_no_group_beside_others_that_do(frozen):
    one, other = (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)) for _ in range(2))
    model = Net(lambda net, x: net.used(x) + 0 * net.unused(x), used=one, unused=other)
    model.used.requires_grad_(not frozen)
    found = discovered(model, torch.randn(4, 6))
    assert names(found) == ["used.0"]
    assert reasons(found)["unused.0"] == "the result does not depend on its units"


def test_a_forward_pass_that_depends_on_values_stays_whole_and_is_named():
    def branches(net, x):
        hidden = net.first(x)
        if x[0, 0] > 100:
            hidden = net.rare(hidden)
        return net.last(hidden)

    odd = Net(branches, first=nn.Linear(6, 5), rare=nn.Linear(5, 5), last=nn.Linear(5, 2))
    safe = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
    model = Net(lambda net, x: net.odd(net.safe(x)), safe=safe, odd=odd, never=nn.Linear(2, 2))
    found = discovered(model, torch.randn(4, 6))
    assert names(found) == ["safe.0"]
    assert "used in odd, which depends on values of tensors (test_discovery.py:" in reasons(found)["odd.first"]
    assert reasons(found)["never"] == reasons(found)["odd.rare"] == "the result of this run does not depend on it"


def test_a_model_that_fails_raises_its_own_error():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        discovered(nn.Linear(3, 2), torch.randn(4, 5))


def test_a_run_must_return_a_tensor():
    with pytest.raises(TypeError, match="must return a tensor"):
        discover_groups(nn.Linear(3, 2), lambda model: {"loss": model(torch.randn(2, 3))})


def test_the_loss_may_be_the_result():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    inputs, targets = torch.randn(4, 6), torch.tensor([0, 1, 2, 4])
    found = discover_groups(model, lambda model: F.cross_entropy(model(inputs), targets))
    assert names(found) == ["0"]


PENALTIES = {
    "squares": lambda model: sum(weight.square().sum() for weight in model.parameters()),
    "norms": lambda model: sum(weight.norm() for weight in model.parameters()),
    "sizes of matrices": lambda model: sum(layer.weight.abs().sum() for layer in (model[0], model[2])),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_of_the_weights_hides_no_group(name):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    inputs, targets = torch.randn(4, 6), torch.tensor([0, 1, 2, 4])
    found = discover_groups(model, lambda model: F.cross_entropy(model(inputs), targets) + PENALTIES[name](model))
    assert [(group.name, group.sums) for group in found.groups] == [("0", ("2.weight",))]


def test_a_penalty_that_depends_on_the_number_of_weights_is_named():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), torch.randn(4, 6)
    found = discover_groups(model, lambda model: model(x).sum() + model[0].weight.square().mean())
    assert not found.groups
    assert reasons(found)["0"] == "its outputs are reduced by mean in the loss"


def test_a_run_that_draws_anew_each_time_proves_nothing():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    batches = iter(torch.randn(9, 4, 6))
    found = discover_groups(model, lambda model: model(next(batches)))
    assert not found.groups
    assert "two runs of the same model give different results" in reasons(found)["0"]


# Attention.


class Attention(nn.Module):
    """Self-attention of its own; `style` is the way in which its code counts heads."""

    def __init__(self, style, size=12, heads=4):
        super().__init__()
        self.style, self.heads, self.head_size, self.inner = style, heads, 2, heads * 2
        self.norm = nn.LayerNorm(size)
        self.q, self.k, self.v = (nn.Linear(size, self.inner) for _ in range(3))
        self.out = nn.Linear(self.inner, size)

    def forward(self, x):
        y = self.norm(x)
        b, t, _ = y.shape
        q, k, v = (self.split(layer(y)) for layer in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(2)).softmax(-1)
        mixed = F.dropout(weights, 0.5, self.training) @ v
        if self.style == "total":
            return x + self.out(mixed.transpose(1, 2).reshape(b, t, self.inner))
        return x + self.out(mixed.transpose(1, 2).flatten(2))

    def split(self, x):
        b, t, _ = x.shape
        if self.style == "size":
            return x.view(b, t, -1, self.head_size).transpose(1, 2)
        if self.style == "fixed":
            return x.view(b, t, 4, 2).transpose(1, 2)
        return x.view(b, t, self.heads, -1).transpose(1, 2)


@pytest.mark.parametrize(("style", "cut"), [("size", []), ("number", ["heads"]), ("total", ["heads", "inner"])])
def test_heads_of_separate_layers_are_units_and_stored_numbers_are_cut(style, cut):
    model = nn.Sequential(Attention(style), Attention(style))
    first, second = discovered(model, torch.randn(3, 5, 12)).groups
    rows = [Slot(f"0.{layer}.{part}", 0, 2) for layer in "qkv" for part in ("weight", "bias")]
    assert first.size == 4
    assert set(first.slots) == {*rows, Slot("0.out.weight", 1, 2)}
    assert first.attributes == tuple(Attribute("0", name) for name in cut)
    assert second.attributes == tuple(Attribute("1", name) for name in cut)


class Squared(nn.Module):
    """As many heads as numbers in a head; two of the four stored numbers that equal both count heads."""

    def __init__(self):
        super().__init__()
        self.head_size = self.heads = self.queries = self.window = 4
        self.total = 16
        self.qkv, self.out = nn.Linear(10, 48), nn.Linear(16, 10)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, self.heads, self.head_size).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q.view(b, self.queries, t, self.head_size), k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(b, t, self.total)) / self.window


def test_heads_as_many_as_their_size_are_found_by_the_numbers_that_count_them():
    (group,) = discovered(Squared(), torch.randn(3, 5, 10)).groups
    assert group.size == 4
    assert {attribute.name for attribute in group.attributes} == {"heads", "queries", "total"}


def test_heads_that_the_code_counts_itself_stay_whole():
    found = discovered(Attention("fixed"), torch.randn(3, 5, 12))
    assert not found.groups
    assert "a subnet with some of its units fails: test_discovery.py:" in reasons(found)["q"]


class Packed(nn.Module):
    """Queries, keys and values of one layer, and keys that several queries share."""

    def __init__(self, heads=6, shared=3):
        super().__init__()
        self.heads, self.shared = heads, shared
        self.q, self.kv, self.out = nn.Linear(8, heads * 2), nn.Linear(8, shared * 4), nn.Linear(heads * 2, 8)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, -1, 2).transpose(1, 2)
        k, v = (part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in self.kv(x).chunk(2, -1))
        k, v = (part.repeat_interleave(self.heads // self.shared, 1) for part in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def test_queries_that_share_a_key_are_one_unit():
    (group,) = discovered(Packed(), torch.randn(3, 5, 8)).groups
    parts = ("weight", "bias")
    assert group.size == 3
    assert set(group.slots) == {
        *(Slot(f"q.{part}", 0, 4) for part in parts),
        *(Slot(f"kv.{part}", 0, 2, 2) for part in parts),
        Slot("out.weight", 1, 4),
    }


def test_both_halves_of_a_gate_are_one_unit():
    def swiglu(net, x):
        gate, up = net.both(x).chunk(2, dim=-1)
        return x + net.down(F.silu(gate) * up)

    model = Net(swiglu, both=nn.Linear(6, 20), down=nn.Linear(10, 6))
    (group,) = discovered(model, torch.randn(4, 3, 6)).groups
    assert set(group.slots) == {
        Slot("both.weight", 0, 1, 2),
        Slot("both.bias", 0, 1, 2),
        Slot("down.weight", 1),
    }


HEADS = {
    Slot("self_attn.in_proj_weight", 0, 2, 3),
    Slot("self_attn.in_proj_bias", 0, 2, 3),
    Slot("self_attn.out_proj.weight", 1, 2),
}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_heads_and_hidden_units_of_torchs_transformer_are_groups(norm_first, batch_first):
    layer = nn.TransformerEncoderLayer(8, 4, 10, norm_first=norm_first, batch_first=batch_first)
    found = discovered(layer, torch.randn(5, 3, 8))
    heads, hidden = found.groups
    assert (heads.name, heads.size, heads.attributes) == ("self_attn", 4, (Attribute("self_attn", "num_heads"),))
    assert set(heads.slots) == HEADS
    assert (hidden.name, hidden.size) == ("linear1", 10)
    assert reasons(found).keys() == {"norm1", "norm2"}


def test_an_encoder_of_torch_with_masks_and_an_embedding():
    def compute(net, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return net.output(net.encoder(net.words(x), mask, x == 0, is_causal=True))

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)
    words = torch.randint(1, 9, (3, 5))
    words[0, 3:] = 0
    found = discovered(Net(compute, words=nn.Embedding(9, 8), encoder=encoder, output=nn.Linear(8, 9)), words)
    layers = ("encoder.layers.0", "encoder.layers.1")
    assert names(found) == [f"{layer}.{part}" for layer in layers for part in ("self_attn", "linear1")]


def test_a_decoder_attends_to_another_sequence():
    layer = nn.TransformerDecoderLayer(8, 4, 10, batch_first=True)
    found = discovered(layer, torch.randn(3, 5, 8), torch.randn(3, 6, 8))
    assert names(found) == ["self_attn", "multihead_attn", "linear1"]


# Torch's attention with some of the heads.

ATTENTIONS = {
    "packed": {},
    "without biases": {"bias": False},
    "other widths": {"kdim": 6, "vdim": 10},
    "more keys": {"add_bias_kv": True, "add_zero_attn": True},
    "batch first": {"batch_first": True},
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@torch.no_grad()
def test_attention_with_some_heads_is_torchs_with_the_others_masked(name, masked, need_weights):
    torch.manual_seed(0)
    said = ATTENTIONS[name]
    full = nn.MultiheadAttention(8, 4, **said).double().eval()
    for parameter in full.parameters():
        nn.init.normal_(parameter)
    query, key, value = (torch.randn(5, 3, size).double() for size in (8, said.get("kdim", 8), said.get("vdim", 8)))
    masks = {}
    if masked:
        samples = 5 if said.get("batch_first") else 3
        length = 3 if said.get("batch_first") else 5
        padding = torch.zeros(samples, length).bool()
        padding[0, -1] = True
        masks = {"key_padding_mask": padding, "attn_mask": torch.ones(length, length).triu(1).bool()}
    slots = [Slot("out_proj.weight", 1, 2)]
    for tensor in ["in_proj_weight", "in_proj_bias", "bias_k", "bias_v", *(f"{x}_proj_weight" for x in "qkv")]:
        if getattr(full, tensor) is not None:
            last = tensor.startswith("bias")
            slots.append(Slot(tensor, 2 if last else 0, 2, 3 if tensor.startswith("in_proj") else 1))
    heads = NeuronGroup("heads", 4, tuple(slots), (Attribute("", "num_heads"),))
    assert full(query, key, value, need_weights=need_weights, **masks)[0].isfinite().all()
    check_cut(full, heads, lambda model: model(query, key, value, need_weights=need_weights, **masks)[0])
    part = copy.deepcopy(full)
    keep_head_size(part)
    mine, theirs = (model(query, key, value, need_weights=need_weights, **masks) for model in (part, full))
    torch.testing.assert_close(mine, theirs)


def check_cut(model, group, run):
    """A subnet of `group` computes the network that masks the other units, with larger weights of scaled sums."""
    partition = partition_units([group], 2, seed=0, round_index=0)
    subnet = build_subnet(model, [group], units_on(0, partition), torch.device("cpu")).eval()
    masked = copy.deepcopy(model)
    mine, others = partition[group.name].units
    slots = {slot.tensor: slot for slot in group.slots}
    for name, tensor in named_tensors(model).items():
        kept = tensor
        if slot := slots.get(name):
            axis = [torch.arange(tensor.shape[slot.dim]).view(slot.segments, group.size, slot.block)]
            kept = tensor.index_select(slot.dim, axis[0][:, mine].flatten())
            named_tensors(masked)[name].index_fill_(slot.dim, axis[0][:, others].flatten(), 0)
        named_tensors(subnet)[name].copy_(kept)
    for name in group.sums:
        named_tensors(masked)[name].data.mul_(group.size / len(mine))
    torch.testing.assert_close(run(subnet), run(masked))


def test_a_mask_of_each_head_does_not_fit_a_part_of_them():
    model = nn.MultiheadAttention(8, 4)
    x, mask = torch.randn(5, 3, 8), torch.randn(12, 5, 5)
    found = discover_groups(model, lambda model: model(x, x, x, attn_mask=mask, need_weights=False)[0])
    assert not found.groups
    assert reasons(found)[""] == "its outputs are bound to the inputs of the network"
    full = nn.MultiheadAttention(8, 4)
    heads = NeuronGroup("heads", 4, (Slot("out_proj.weight", 1, 2),), (Attribute("", "num_heads"),))
    part = build_subnet(full, [heads], {"heads": 2}, torch.device("cpu"))
    with pytest.raises(ValueError, match="a mask for each attention head does not fit"):
        part(x, x, x, attn_mask=mask)


# Random networks.


@st.composite
def networks(draw):
    """A convolutional network with residual blocks, normalisation, gates and a head; of few channels."""
    layers, channels = [], 3
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["conv", "depthwise", "norm", "group norm", "act", "block", "pool", "dropout"]))
        if kind == "conv":
            layers.append(nn.Conv2d(channels, channels := draw(st.integers(2, 6)), 3, padding=1))
        elif kind == "depthwise":
            layers.append(nn.Conv2d(channels, channels, 3, padding=1, groups=channels))
        elif kind == "norm":
            layers.append(nn.BatchNorm2d(channels))
        elif kind == "group norm":
            layers.append(
                nn.GroupNorm(draw(st.sampled_from([n for n in (1, 2, 3, 4) if channels % n == 0])), channels)
            )
        elif kind == "block":
            layers.append(Block(channels, draw(st.sampled_from([1, 2]))))
        else:
            layers.append(
                {"act": nn.SiLU(), "pool": nn.AvgPool2d(2, ceil_mode=True), "dropout": nn.Dropout2d()}[kind]
            )
    pixels = nn.Sequential(*layers)(images()).shape[-1]
    hidden = draw(st.integers(2, 6))
    layers += [nn.Flatten(), nn.Linear(channels * pixels**2, hidden)]
    layers += draw(st.sampled_from([[nn.Tanh()], [nn.BatchNorm1d(hidden)], [nn.LayerNorm(hidden)], []]))
    return nn.Sequential(*layers, nn.Linear(hidden, 2))


@settings(max_examples=12)
@given(model=networks(), seed=st.integers(0, 9))
def test_every_group_of_a_random_network_is_a_set_of_units(model, seed):
    found = discovered(model, images())
    torch.manual_seed(seed)
    model = model.double().eval()
    for tensor in named_tensors(model).values():
        if tensor.is_floating_point():
            tensor.data.uniform_(0.1, 1.0)
    inputs = images().double()
    expected = model(inputs)
    for group in found.groups:
        with torch.no_grad():
            permuted = copy.deepcopy(model)
            permute_units(permuted, group, torch.randperm(group.size))
            torch.testing.assert_close(permuted(inputs), expected)
            check_cut(model, group, lambda model: model(inputs))
    assert len(found.groups) >= sum(isinstance(layer, Block) for layer in model)


def test_the_groups_of_a_chain_are_those_of_its_rule():
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, 5))
    model.extend([nn.Tanh(), nn.Linear(5, 2)])
    assert sets(discovered(model, torch.randn(4, 2, 6)).groups) == sets(chain_groups(model, model))
