"""The models that are there for their sizes: the figures they are known by, and that they train."""

import pytest
import torch

from istbench.base.errors import UserError
from istbench.studies.conformance.of_workloads import (
    batches_repeat,
    every_parameter_learns,
    rows_are_the_full_models_rows,
    the_metric_is_reported,
)
from istbench.workloads.imagenet import ImageNet, ImageNetOptions
from istbench.workloads.translation import Translation, TranslationOptions


def parameters(workload):
    with torch.device("meta"):
        return [parameter.numel() for parameter in workload.build_model().parameters()]


@pytest.mark.parametrize(
    ("model", "count"), [("vgg19", 143_667_240), ("resnet50", 25_557_032), ("inception_v3", 23_834_568)]
)
def test_image_models_have_their_known_number_of_parameters(model, count):
    assert sum(parameters(ImageNet(ImageNetOptions(model=model)))) == count


def test_one_layer_of_vgg19_has_most_of_its_parameters():
    counts = parameters(ImageNet(ImageNetOptions(model="vgg19")))
    assert max(counts) / sum(counts) == pytest.approx(0.715, abs=0.001)


def small_translation():
    workload = Translation(TranslationOptions(hidden=8, embedding=6, words=20, length=5, samples=40))
    workload.open(workload.prepare(None, None, lambda *_: None))
    return workload


@pytest.mark.parametrize(
    "check", [every_parameter_learns, the_metric_is_reported, batches_repeat, rows_are_the_full_models_rows]
)
def test_the_translation_workload_keeps_the_contract(check):
    assert check(small_translation())


def test_the_translation_of_a_sentence_is_that_sentence_backwards():
    source, translation = small_translation().train_batch(torch.arange(3), torch.Generator())
    assert torch.equal(source.flip(1), translation)
    assert source.min() >= 1


def test_data_directories_are_refused(tmp_path):
    with pytest.raises(UserError, match="leave out --data"):
        Translation().prepare(tmp_path, tmp_path, lambda *_: None)
