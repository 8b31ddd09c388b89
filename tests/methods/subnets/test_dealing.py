"""The groups that `deal` selects, in the networks of the workloads."""

import pytest
import torch

from istbench.base.errors import UserError
from istbench.methods.dealt_groups import selected_groups
from istbench.methods.ist import IndependentSubnetTraining
from istbench.node.registry import build_method, build_workload

LATE = ["block2_2.hidden1", "block3_2.hidden1", "block4_2.hidden1"]
VGG12 = {"model": "vgg12", "width": 2, "resolution": 32}


def selected(workload, options, deal):
    built = build_workload(workload, options)
    with torch.device("meta"):
        model = built.build_model()
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
    with torch.device("meta"):
        model = workload.build_model()
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
        with torch.device("meta"):
            model = built.build_model()
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
