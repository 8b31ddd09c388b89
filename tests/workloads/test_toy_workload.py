"""The toy workload's data."""

import pytest
import torch

from istbench.base.errors import UserError
from istbench.workloads.toy import Toy, ToyOptions


def test_the_same_points_in_every_process(tmp_path, no_progress):
    first, second = Toy(), Toy()
    source = first.prepare(None, tmp_path / "cache", no_progress)
    assert source == second.prepare(None, tmp_path / "cache", no_progress)
    assert (source.kind, source.path, source.train, source.test) == ("synthetic", "", 512, 128)
    assert not (tmp_path / "cache").exists()
    for toy in (first, second):
        toy.open(source)
    chosen = torch.tensor([5, 0, 511])
    generator = torch.Generator()
    for one, other in zip(first.train_batch(chosen, generator), second.train_batch(chosen, generator), strict=True):
        assert torch.equal(one, other)
    assert first.train_size == 512
    assert sum(len(labels) for _, labels in first.test_batches()) == 128


def test_other_options_are_other_data(tmp_path, no_progress):
    fingerprints = {
        Toy(options).prepare(None, tmp_path, no_progress).fingerprint
        for options in (ToyOptions(), ToyOptions(samples=64), ToyOptions(classes=3), ToyOptions(features=3))
    }
    assert len(fingerprints) == 4


def test_a_data_directory_is_refused(tmp_path, no_progress):
    with pytest.raises(UserError, match="makes its own data"):
        Toy().prepare(tmp_path, tmp_path, no_progress)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_plain_training_reaches_the_targets(tmp_path, no_progress, batch_norm):
    toy = Toy(ToyOptions(batch_norm=batch_norm))
    toy.open(toy.prepare(None, tmp_path, no_progress))
    torch.manual_seed(0)
    model = toy.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=toy.method_defaults("ddp")["lr"])
    generator = torch.Generator().manual_seed(0)
    for _ in range(int(toy.epochs)):
        for indices in torch.randperm(toy.train_size, generator=generator).split(4 * toy.batch_size):
            optimizer.zero_grad()
            toy.loss(model, toy.train_batch(indices, generator)).backward()
            optimizer.step()
    assert toy.evaluate(model.eval(), toy.test_batches())["accuracy"] > max(toy.targets)
