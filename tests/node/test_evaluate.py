"""The training samples that BatchNorm's statistics are estimated on, and what that leaves behind."""

import pytest
import torch

from istbench.node.digest import weights_sha256
from istbench.node.evaluate import calibrated, calibration_batches, evaluate
from istbench.studies.conformance.training import initial_model, open_workload

TOY = open_workload("toy", {"batch_norm": True, "samples": 700, "classes": 7})  # a hundred points a cluster


def sizes(batches):
    return [len(labels) for _, labels in batches]


@pytest.mark.parametrize("classes", [None, TOY.train_classes()])
def test_batches_are_of_nearly_one_size_and_never_of_one_sample(classes):
    assert sizes(calibration_batches(TOY, 0, 300, 100, classes)) == [100, 100, 100]
    assert sizes(calibration_batches(TOY, 0, 301, 100, classes)) == [101, 100, 100]
    assert sizes(calibration_batches(TOY, 0, 99, 100, classes)) == [99]
    assert sizes(calibration_batches(TOY, 0, 5000, 512, classes)) == [700]
    assert sizes(calibration_batches(TOY, 0, 1, 100, classes)) == [2]


def test_every_batch_has_the_classes_in_their_proportions():
    points = []
    for inputs, labels in calibration_batches(TOY, 3, 280, 70, TOY.train_classes()):
        assert labels.bincount().tolist() == [10] * 7
        points += inputs.tolist()
    assert len({tuple(point) for point in points}) == 280


def test_rare_classes_are_drawn_as_often_as_they_are():
    rare = torch.zeros(700, dtype=torch.long)
    rare[::70] = 1  # one in seventy
    kept = open_workload("toy", {"samples": 700})
    train_batch = kept.train_batch
    kept.train_batch = lambda indices, generator: (train_batch(indices, generator)[0], rare[indices])
    for seed in range(5):
        drawn = torch.cat([labels for _, labels in calibration_batches(kept, seed, 140, 140, rare)])
        assert drawn.sum() == 2


def test_a_seed_is_a_draw():
    one, same, other = (
        torch.cat([inputs for inputs, _ in calibration_batches(TOY, seed, 90, 45, TOY.train_classes())])
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_frozen_layer_keeps_its_statistics_and_stays_frozen():
    model = initial_model(TOY)
    layer = next(own for own in model.modules() if isinstance(own, torch.nn.BatchNorm1d)).eval()
    layer.running_mean.fill_(3.0)
    with calibrated(model, TOY, 0, torch.device("cpu")):
        assert torch.equal(layer.running_mean, torch.full_like(layer.running_mean, 3.0))
        evaluate(model, TOY, torch.device("cpu"))
    assert (model.training, layer.training) == (True, False)


def test_statistics_are_those_of_the_training_data_inside_and_all_is_as_before_outside():
    model = initial_model(TOY)
    bias = model.linear2.bias.data
    model.register_forward_pre_hook(lambda module, _: (bias.add_(float(module.training)), None)[1])
    before = weights_sha256(model)
    with calibrated(model, TOY, 0, torch.device("cpu")):
        inputs, _ = TOY.train_batch(torch.arange(700), torch.Generator())
        hidden = model.linear1(inputs)
        assert torch.allclose(model.norm1.running_mean, hidden.mean(0), atol=1e-5)
        assert torch.allclose(model.norm1.running_var, hidden.var(0), rtol=1e-2)
    assert weights_sha256(model) == before
    assert model.norm1.momentum == 0.1
