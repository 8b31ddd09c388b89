"""Weights in safetensors files, which the format's own library reads; and what a failure leaves."""

import json
import os

import pytest
import torch
from garbage import one_line
from safetensors import safe_open
from safetensors.torch import load_file

from istbench.base.errors import UserError
from istbench.node import digest
from istbench.node.digest import blocks_of, sha256_of, weights_sha256
from istbench.node.weights_file import check_directory, save_weights, saved_digest
from istbench.workloads.base import STORED_TYPES

TENSORS = {
    "flag": torch.tensor([True, False, True]),
    "weight": torch.randn(5, 3, 2),
    "half": torch.randn(3).bfloat16(),
    "count": torch.tensor(7),
    "turned": torch.randn(4, 6).t(),
    "none": torch.empty(0, 3),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(digest, "_BLOCK_VALUES", 7)


def save(directory, most=10**9, tensors=TENSORS):
    save_weights(directory, tensors, blocks_of(tensors), "abc", most)


def equal(found, wanted=TENSORS):
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype and torch.equal(found[name], wanted[name]) for name in wanted
    )


def test_what_is_small_is_one_file(tmp_path):
    save(tmp_path / "new" / "folder")
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert path.name == "model.safetensors"
    assert equal(load_file(path))
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "weights_sha256": "abc"}
    assert saved_digest(path.parent) == "abc"


def test_every_type_of_a_buffer_is_saved(tmp_path):
    numbers = torch.arange(10) % 2
    tensors = {str(dtype): numbers.to(dtype) for dtype in STORED_TYPES}
    tensors["freqs_cis"] = torch.polar(torch.ones(3), torch.arange(3.0))
    save(tmp_path, tensors=tensors)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, own in tensors.items():
        assert found[name].dtype == own.dtype
        assert found[name].view(torch.uint8).tolist() == own.view(torch.uint8).tolist()


def test_what_is_large_is_several_with_an_index(tmp_path):
    save(tmp_path, most=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 3 + 120 + 6 + 8 + 96
    names = [f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    assert sorted(set(index["weight_map"].values())) == names
    assert index["weight_map"]["weight"] != index["weight_map"]["flag"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "model.safetensors.index.json"]
    found = {}
    for name in names:
        tensors = load_file(tmp_path / name)
        assert all(index["weight_map"][part] == name for part in tensors)
        found |= tensors
    assert equal(found)
    assert saved_digest(tmp_path) == "abc"


def test_one_model_replaces_another_and_leaves_what_is_none(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path, most=100)
    save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "notes.txt"]
    save(tmp_path, most=100)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_failure_leaves_what_was_there(tmp_path):
    save(tmp_path)

    def broken(name, dim, first, last):
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError) as caught:
        save_weights(tmp_path, TENSORS, broken, "other", 100)
    assert f"cannot save weights in {tmp_path}: No space left on device" in one_line(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert equal(load_file(tmp_path / "model.safetensors"))


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("long" * 100)):
        with pytest.raises(UserError, match="cannot save weights in .*(file|long)"):
            check_directory(folder)
    check_directory(tmp_path / "new" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_no_model_has_no_digest(tmp_path):
    assert saved_digest(tmp_path / "nowhere") is None
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "model.safetensors.index.json")
    assert saved_digest(tmp_path / "pipe") is None
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert saved_digest(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    assert saved_digest(tmp_path) is None


def test_the_digest_is_of_the_values_however_they_are_read():
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
    wanted = weights_sha256(model)
    assert weights_sha256(model) == wanted
    blank = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    assert sha256_of(blank, blocks_of(model.state_dict())) == wanted
    with torch.no_grad():
        model[0].weight[3, 4] += 1
    assert weights_sha256(model) != wanted
