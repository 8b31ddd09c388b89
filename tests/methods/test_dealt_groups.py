"""Neuron groups on a number of nodes: those that stay whole, and those that differ between nodes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from istbench.base.errors import UserError
from istbench.methods.dealt_groups import check_groups, compare_groups, dealt_groups, selected_groups
from istbench.methods.ist import IndependentSubnetTraining
from istbench.methods.streaming_ist import StreamingSubnetTraining
from istbench.node.registry import build_method, build_workload
from istbench.workloads.contract import blank_model
from istbench.workloads.neuron_groups.discovery import discover_groups
from istbench.workloads.neuron_groups.groups import Slot
from istbench.workloads.neuron_groups.layout import layout_of

LATE = ["block2_2.hidden1", "block3_2.hidden1", "block4_2.hidden1"]
VGG12 = {"model": "vgg12", "width": 2, "resolution": 32}


def selected(workload, options, deal):
    built = build_workload(workload, options)
    model = blank_model(built)
    parsed = build_method("ist", {"deal": deal}).options
    IndependentSubnetTraining.check(parsed, model, built, 2)
    return [group.name for group in selected_groups(model, built.neuron_groups(model), parsed.deal)]


def test_late_groups_are_those_of_blocks_that_keep_their_shape():
    assert selected("cifar10", {"width": 2}, "late") == LATE
    assert selected("cifar10", {"width": 2}, "block4_1, late") == [*LATE[:2], "block4_1.hidden1", LATE[2]]
    assert selected("imagenet", VGG12, "late") == selected("imagenet", VGG12, "linear") == ["hidden10", "hidden11"]
    text = {"layers": 5, "heads": 2, "width": 4}
    assert selected("text", text, "late") == [
        f"block{number}.{part}" for number in (3, 4, 5) for part in ("heads", "hidden")
    ]


def test_names_select_groups_and_layers_in_the_order_of_the_model():
    names = "block3_1,block1_2.hidden1"
    assert selected("cifar10", {"width": 2}, names) == ["block1_2.hidden1", "block3_1.hidden1"]
    assert selected("text", {"layers": 2, "heads": 2, "width": 4}, "block2") == ["block2.heads", "block2.hidden"]
    assert len(selected("cifar10", {"width": 2}, "all")) == 8
    assert selected("toy", {}, "linear") == ["hidden1", "hidden2"]


@pytest.mark.parametrize(
    ("workload", "options", "default"),
    [
        ("cifar10", {}, ["block4_2.hidden1"]),
        ("imagenet", VGG12, ["hidden11"]),
        ("imagenet", {"model": "resnet18"}, None),
    ],
)
def test_the_image_networks_of_the_study_deal_their_last_layer_by_default(workload, options, default):
    built = build_workload(workload, options)
    for method in ("ist", "streaming_ist"):
        chosen = build_method(method, {}, workload=built).options
        assert (chosen.coverage, chosen.warmup_rounds) == (1, 0)
        if default is None:
            assert chosen.deal == ("all",)
        else:
            assert selected(workload, options, ",".join(chosen.deal)) == default
        assert build_method(method, {"deal": "all"}, workload=built).options.deal == ("all",)  # the paper's form


def checked(method, options):
    workload = build_workload("toy", {})
    model = blank_model(workload)
    built = build_method(method, options)
    built.check(built.options, model, workload, 2)


@pytest.mark.parametrize(
    ("workload", "deal", "said"),
    [
        ("toy", "late", "deal=late: the model has no late neuron groups. Known: hidden1, hidden2"),
        ("cifar10", "linear", "deal=linear: the model has no linear neuron groups"),
        ("cifar10", "block4_3", "deal: no neuron group 'block4_3'; did you mean"),
        ("toy", "hidden1,hidden3", "deal: no neuron group 'hidden3'; did you mean"),
        ("toy", "", "option deal"),
    ],
)
def test_names_of_no_group_are_refused(workload, deal, said):
    with pytest.raises(UserError, match=said) as refused:
        selected(workload, {"width": 2} if workload == "cifar10" else {}, deal)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("ist", {"coverage": 3}, "coverage=3 needs as many nodes, not 2; set coverage=2"),
        ("ist", {"moving": 1.5}, "option moving"),
        ("streaming_ist", {"coverage": 2}, "coverage=2 needs ist"),
    ],
)
def test_options_that_cannot_be_are_refused(method, options, said):
    with pytest.raises(UserError, match=said):
        checked(method, options)


@pytest.mark.parametrize(
    ("workload", "options", "late", "all_dealt"),
    [
        ("cifar10", {"width": 4}, LATE, 8),
        ("imagenet", {**VGG12, "classes": 5}, ["hidden10", "hidden11"], 11),
        ("text", {"layers": 2, "heads": 2, "width": 4}, ["block2.heads", "block2.hidden"], 4),
    ],
)
def test_widen_multiplies_the_units_of_late_or_of_all_groups(workload, options, late, all_dealt):
    def sizes(**more):
        built = build_workload(workload, {**options, **more})
        model = blank_model(built)
        return {group.name: group.size for group in built.neuron_groups(model)}

    before, wider, widest = sizes(), sizes(widen=2), sizes(widen=2, widened="all")
    assert len(before) == all_dealt
    assert wider == {name: size * (2 if name in late else 1) for name, size in before.items()}
    assert widest == {name: 2 * size for name, size in before.items()}


def test_widen_is_refused_for_networks_that_ist_cannot_cut():
    with pytest.raises(UserError, match="widen is an option of vgg12, not of resnet18"):
        build_workload("imagenet", {"model": "resnet18", "widen": 2})
    with pytest.raises(UserError, match="widened is an option of vgg12, not of resnet18; leave it out"):
        build_workload("imagenet", {"model": "resnet18", "widened": "all"})


@pytest.mark.parametrize(
    ("workload", "options", "said"),
    [
        ("cifar10", {"widened": "all"}, "widened=all has no effect without widen; set widen=2 or more"),
        ("imagenet", {"model": "vgg12", "widened": "all"}, "widened=all has no effect without widen"),
        ("text", {"widened": "all"}, "widened=all has no effect without widen"),
        (
            "text",
            {"layers": 1, "widen": 2},
            "widen=2 needs a late block, and layers=1 has none; set widened=all",
        ),
    ],
)
def test_options_that_widen_nothing_are_refused(workload, options, said):
    with pytest.raises(UserError, match=said) as refused:
        build_workload(workload, options)
    assert "\n" not in str(refused.value)
    build_workload("text", {"layers": 1, "widen": 2, "widened": "all"})


MODEL = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 1))
FOUND = discover_groups(MODEL, lambda model: model(torch.randn(4, 3))).groups
WRITTEN = [replace(group, found=False) for group in FOUND]


def workload_of(groups):
    return SimpleNamespace(
        name="mine",
        neuron_groups=lambda model: groups,
        prove_groups=lambda groups: "",
        prove_silence=lambda groups: None,
    )


def check(groups, nodes, method="ist"):
    built = build_method(method, {})
    built.check(built.options, MODEL, workload_of(groups), nodes)
    return built.remark(MODEL, workload_of(groups), nodes)


@pytest.mark.parametrize("method", ["ist", "streaming_ist"])
def test_found_groups_with_fewer_units_than_nodes_stay_whole_and_are_named(method):
    assert [(group.name, group.size) for group in FOUND] == [("0", 8), ("2", 2)]
    assert check(FOUND, 2, method) == ""
    assert check(FOUND, 4, method) == "neuron groups with fewer units than the 4 nodes stay whole: 2 (2)"
    layout = layout_of(MODEL, dealt_groups(MODEL, workload_of(FOUND), 4, IndependentSubnetTraining().options))
    assert {cut.name: len(cut.axes) for cut in layout.cut} == {"0.weight": 1, "0.bias": 1, "2.weight": 1}
    assert layout.replicated == ("2.bias", "4.weight", "4.bias")


def test_groups_of_which_none_has_a_unit_for_each_node_are_refused():
    with pytest.raises(UserError) as refused:
        check(FOUND, 9)
    assert str(refused.value) == (
        "ist needs a hidden unit for each node, but '0' has 8 units for 9 nodes, the most of all groups; use fewer "
        "nodes or a wider model"
    )


def test_groups_that_someone_wrote_are_refused_and_not_left_whole():
    with pytest.raises(UserError, match="'2' has 2 units for 4 nodes; use fewer nodes or a wider model"):
        check(WRITTEN, 4)


def test_many_whole_groups_are_counted():
    groups = [replace(FOUND[1], name=f"head{number}") for number in range(6)]
    remark = IndependentSubnetTraining().remark(MODEL, workload_of(groups), 3)
    assert remark.endswith("whole: head0 (2), head1 (2), head2 (2), head3 (2) and 2 more")
    assert StreamingSubnetTraining().remark(MODEL, workload_of(groups), 2) == ""


def test_nodes_with_the_same_groups_go_on_and_others_name_the_first_that_differs():
    def said(*by_rank):
        def compared(fabric):
            try:
                compare_groups(by_rank[fabric.rank], fabric)
            except UserError as refused:
                return str(refused).partition(";")[0]
            return ""

        return on_ranks(len(by_rank), compared)

    first, second = FOUND
    assert said(FOUND, list(FOUND), FOUND) == ["", "", ""]
    assert said([], []) == ["", ""]
    assert said(FOUND, [first, replace(second, size=1)], FOUND) == [
        "rank 0 finds neuron group '2', but rank 1 finds another or none",
        "rank 1 finds neuron group '2', but rank 0 finds another or none",
        "rank 2 finds neuron group '2', but rank 1 finds another or none",
    ]
    assert said(FOUND, [first]) == [
        "rank 0 finds neuron group '2', but rank 1 finds another or none",
        "rank 1 finds only 1 neuron groups, but rank 0 finds more",
    ]


def test_a_group_needs_fewer_units_where_several_nodes_train_each():
    options = IndependentSubnetTraining.Options(coverage=2)
    assert [group.name for group in dealt_groups(MODEL, workload_of(FOUND), 4, options)] == ["0", "2"]
    assert IndependentSubnetTraining(options).remark(MODEL, workload_of(WRITTEN), 4) == ""
    check_groups("ist", MODEL, workload_of(WRITTEN), 4, options)


def test_names_select_among_all_groups_before_small_ones_stay_whole():
    options = IndependentSubnetTraining.Options(deal=("0", "2"))
    assert [group.name for group in dealt_groups(MODEL, workload_of(FOUND), 4, options)] == ["0"]
    check_groups("ist", MODEL, workload_of(FOUND), 4, options)


def test_sums_are_scaled_unless_the_option_is_off():
    for scale, sums in (("auto", [("2.weight",), ("4.weight",)]), ("off", [(), ()])):
        options = IndependentSubnetTraining.Options(scale=scale)
        assert [group.sums for group in dealt_groups(MODEL, workload_of(FOUND), 2, options)] == sums


def test_only_statistics_that_an_evaluation_estimates_stay_behind_and_whole_numbers_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), FrozenBatchNorm2d(4), nn.Conv2d(4, 2, 1))
    groups = discover_groups(model, lambda model: model(torch.randn(2, 3, 5, 5))).groups
    cut = {tensor.name for tensor in layout_of(model, groups).cut}
    assert {"2.running_mean", "2.running_var", "2.weight", "1.weight", "0.weight"} <= cut
    assert not {"1.running_mean", "1.running_var"} & cut
    model[0].register_buffer("counts", torch.arange(4))
    counted = replace(groups[0], slots=(*groups[0].slots, Slot("0.counts", 0)))
    with pytest.raises(ValueError, match=r"group '0': 0\.counts is a buffer of torch\.int64, and units travel as"):
        layout_of(model, [counted])
