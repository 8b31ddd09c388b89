"""Samples held out of the training data in place of the test split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.node.registry import build_workload
from istbench.workloads.held_out import hold_out
from istbench.workloads.speech import Speech
from istbench.workloads.speech_data.words import WORDS
from tests.small_task import write_task

GENERATOR = torch.Generator()


def opened(workload, cache, share, seed=0, data=None):
    own = hold_out(workload, share, seed)
    own.open(own.prepare(data, cache, lambda *_: None))
    return own


def toy(tmp_path, share, seed=0):
    return opened(build_workload("toy", {}), tmp_path, share, seed)


def rows(workload):
    points = workload.train_batch(torch.arange(workload.train_size), GENERATOR)[0]
    return {row.numpy().tobytes() for row in points}


def validation(workload):
    return {row.numpy().tobytes() for points, _ in workload.test_batches() for row in points}


def test_both_parts_are_the_training_data_and_nothing_else(tmp_path):
    whole, own = toy(tmp_path, None), toy(tmp_path, 0.1)
    assert own.train_size == 461
    assert len(validation(own)) == 51
    assert rows(own) | validation(own) == rows(whole)
    assert not rows(own) & validation(own)
    assert not validation(own) & validation(whole), "no test sample"
    classes = own.train_classes()
    assert classes is not None
    assert torch.equal(classes, own.train_batch(torch.arange(461), GENERATOR)[1])


def test_the_seed_and_the_share_define_the_parts_and_the_cell(tmp_path):
    assert validation(toy(tmp_path, 0.1)) == validation(toy(tmp_path, 0.1))
    assert validation(toy(tmp_path, 0.1, seed=1)) != validation(toy(tmp_path, 0.1))
    cells = [
        prepare_cell(RunRequest(workload="toy", method="ddp", held_out=share, seed=seed), lambda *_: None)
        for share, seed in ((None, 0), (0.1, 0), (0.2, 0), (0.1, 1))
    ]
    assert len({cell.cell for cell in cells}) == 4
    assert len({cell.data_source.fingerprint for cell in cells}) == 4
    source = cells[1].data_source
    assert (source.train, source.test) == (461, 51)
    assert "validated on 51 others of the training split, the test split unused" in source.seen


def test_a_share_that_leaves_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^--held-out 0.9999 leaves none of 512 training samples"):
        toy(tmp_path, 0.9999)


def test_a_task_file_whose_test_split_must_not_be_opened(tmp_path):
    file = write_task(tmp_path / "closed.py")
    guard = "def data(train):\n    if not train:\n        raise RuntimeError('the test split was read')\n"
    file.write_text(file.read_text().replace("def data(train):\n", guard))
    with pytest.raises(Exception, match="the test split was read"):
        opened(build_workload(str(file), {}), tmp_path, None)
    own = opened(build_workload(str(file), {}), tmp_path, 0.25)
    assert own.train_size == 384
    assert sum(len(batch[0]) for batch in own.test_batches()) == 128


def test_batches_in_an_order_of_their_own_cannot_be_divided(tmp_path):
    file = write_task(tmp_path / "stream.py")
    text = file.read_text().replace(
        "    return TensorDataset(points, points[:, :4].argmax(1))",
        "    return [(points, points[:, :4].argmax(1))]",
    )
    file.write_text(text.replace("batch_size = 16\n", ""))
    with pytest.raises(UserError, match="return a Dataset, or leave --held-out out"):
        opened(build_workload(str(file), {}), tmp_path, 0.25)


def test_held_out_text_is_its_end_and_shares_no_symbol_with_the_rest(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(chr(0x4E00 + number) for number in range(400)))  # each symbol once
    options = {"context": "8", "test_percent": "10", "width": "8", "heads": "2"}
    whole = opened(build_workload("text", options), tmp_path / "c", None, data=file)
    own = opened(build_workload("text", options), tmp_path / "c", 0.2, data=file)
    held = {int(symbol) for batch in own.test_batches() for part in batch for symbol in part.unique()}
    drawn = torch.Generator().manual_seed(3)
    trained = set()
    for _ in range(60):
        for part in own.train_batch(torch.arange(own.train_size), drawn):
            trained |= set(part.unique().tolist())
    assert not held & trained
    assert max(trained) < min(held)
    tested = {int(symbol) for batch in whole.test_batches() for part in batch for symbol in part.unique()}
    assert not tested & (held | trained)


def test_held_out_images_are_not_augmented(tmp_path):
    own = opened(build_workload("cifar10", {"images": "40"}), tmp_path, 0.25)
    once, again = (torch.cat([images for images, _ in own.test_batches()]) for _ in range(2))
    assert torch.equal(once, again)
    whole = own.whole
    plain = whole.plain_batch(torch.arange(whole.train_size))[0]
    held = torch.tensor([[torch.equal(image, other) for other in plain].index(True) for image in once])
    assert not torch.equal(once, whole.train_batch(held, GENERATOR)[0])


@pytest.mark.parametrize("name", ["cifar10", "amazon670k", "text"])
def test_a_stored_test_split_may_be_gone_after_its_preparation(name, tmp_path):
    options = {"cifar10": {"images": "40"}, "amazon670k": {"points": "60", "features": "50", "labels": "20"}}
    data = None
    if name == "text":
        data = tmp_path / "text.txt"
        data.write_text("some words " * 300)
    for share in (None, 0.2):
        own = hold_out(build_workload(name, options.get(name, {})), share, 0)
        source = own.prepare(data, tmp_path / str(share), lambda *_: None)
        for file in Path(source.path).glob("test_*"):
            file.unlink()
        if share is None:
            with pytest.raises(UserError, match="test_"):
                own.open(source)
        else:
            own.open(source)
            assert sum(len(batch[1]) for batch in own.test_batches()) == source.test


def test_speech_opens_no_test_clip(tmp_path, no_progress):
    from istbench.workloads.speech_data.build import prepared

    clips = np.random.default_rng(0).random((20, 4096), np.float32)
    chunks = [(clips, np.arange(20) % 5, np.arange(20) >= 10)]
    path, _ = prepared(tmp_path, "kind", {"a": 1}, WORDS, 20, chunks, no_progress)
    for file in path.glob("test_*"):
        file.unlink()
    speech = Speech()
    speech.without_test = True
    from istbench.base.options.data_source import DataSource

    speech.open(DataSource(kind="kind", path=str(path), fingerprint="0", train=10, test=10))
    assert speech.train_size == 10
