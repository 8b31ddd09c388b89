"""CIFAR-10's official batches: read as they are, and nothing of a pickle run."""

import copyreg
import os
import pickle
import shutil
import tarfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import batches, decoded, write_pickle

from istbench.base.errors import UserError
from istbench.workloads.cifar10 import Cifar10
from istbench.workloads.image_data import cifar_batches
from istbench.workloads.image_data.unpickle import NotPlainData, StoredArray, plain_data

EACH = 4


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(cifar_batches, "_BATCH_IMAGES", EACH)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("above", [False, True])
def test_both_official_layouts_are_read(tmp_path, no_progress, binary, above):
    folder, images, labels = batches(tmp_path / "data", EACH, binary=binary)
    workload = Cifar10()
    source = workload.prepare(folder.parent if above else folder, tmp_path / "cache", no_progress)
    assert (source.kind, source.train, source.test) == ("cifar10", 20, 4)
    assert source.seen == "CIFAR-10, 24 of 60,000 images: a subset"
    assert workload.targets == (0.8, 0.85, 0.88, 0.9)
    summary, train, test = decoded(source)
    assert summary.classes == cifar_batches.CLASSES
    assert np.array_equal(train.samples, images[:20])
    assert np.array_equal(test.samples, images[20:])
    assert np.array_equal(np.concatenate([train.labels, test.labels]), labels)


def test_the_pickles_of_python_2_are_read():
    # As `pickle.dumps({"data": numpy.array([[1, 2, 3]], "u1"), "labels": [7]}, 2)` of Python 2 has it.
    old = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01bq\x05\x87Rq\x06(K\x01K\x01K\x03\x86cnumpy\ndtype\nq\x07U\x02u1q\x08K\x00K\x01\x87Rq\x09(K\x03U\x01|"
        b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03\x01\x02\x03tbU\x06labels]K\x07au."
    )
    read = plain_data(old)
    assert read[b"labels"] == [7]
    assert read[b"data"].integers().tolist() == [[1, 2, 3]]


LABELS = {
    "numbers": np.ndarray.tolist,
    "numpy's numbers": list,
    "an array": np.asarray,
    "a big-endian array": lambda labels: labels.astype(">i2"),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_pickles_of_python_3_are_read(tmp_path, no_progress, protocol, kind, order):
    folder, images, labels = batches(tmp_path / "data", EACH)
    content = {"data": images[:EACH].reshape(EACH, -1).copy(order), "labels": LABELS[kind](labels[:EACH])}
    (folder / "data_batch_1").write_bytes(pickle.dumps(content, protocol=protocol))
    _, train, _ = decoded(Cifar10().prepare(folder, tmp_path / "cache", no_progress))
    assert np.array_equal(train.samples, images[:20])
    assert np.array_equal(train.labels, labels[:20])


class Payload:
    """What runs a command when it is unpickled by anything that trusts it."""

    def __init__(self, *call):
        self._call = call

    def __reduce__(self):
        return self._call[0], self._call[1:]


PAYLOADS = {
    "posix.system": lambda mark: Payload(os.system, f"touch {mark}"),
    "builtins.exec": lambda mark: {b"data": Payload(exec, f"open({str(mark)!r}, 'w')"), b"labels": [1]},
    "builtins.eval": lambda mark: {b"data": np.zeros((1, 3072), np.uint8), b"labels": [Payload(eval, "1")]},
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_is_refused_and_not_run(tmp_path, no_progress, name):
    folder, _, _ = batches(tmp_path / "data", EACH)
    mark = tmp_path / "was run"
    write_pickle(folder / "data_batch_3", PAYLOADS[name](mark))
    with pytest.raises(
        UserError, match=f"data_batch_3: not a batch of CIFAR-10: it names {name}.*extract"
    ) as caught:
        Cifar10().prepare(folder, tmp_path / "cache", no_progress)
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_an_extension_is_refused_even_if_it_was_looked_up_before(tmp_path):
    mark = tmp_path / "was run"
    call = b"\x80\x02\x82\xf1X" + len(f"touch {mark}").to_bytes(4, "little") + f"touch {mark}".encode() + b"\x85R."
    copyreg.add_extension("posix", "system", 0xF1)
    try:
        assert pickle.loads(b"\x80\x02\x82\xf1.") is os.system  # from now on, unpicklers find it in a cache
        with pytest.raises(NotPlainData, match="it names extension 241; istbench ran none of it"):
            plain_data(call)
    finally:
        copyreg.remove_extension("posix", "system", 0xF1)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"Pa file\n.", b"Va file\nQ."])
def test_an_object_outside_of_a_pickle_is_refused(content):
    with pytest.raises(NotPlainData, match="it refers to objects outside the pickle"):
        plain_data(content)


ROOM = {
    "a bytearray": (b"\x80\x05\x96" + (1 << 30).to_bytes(8, "little") + b"abc.", "it ends early"),
    "bytes": (b"\x80\x04\x8e" + (1 << 30).to_bytes(8, "little") + b"abc.", "it ends early"),
    "a text": (b"\x80\x02X" + (1 << 30).to_bytes(4, "little") + b"abc.", "it ends early"),
    "a frame": (b"\x80\x04\x95" + (1 << 30).to_bytes(8, "little") + b"N.", "not a complete pickle"),
    "a memo": (b"\x80\x02Nr" + (1 << 26).to_bytes(4, "little") + b".", "memo number 67,108,864 is out of order"),
    "a memo, as text": (b"Np67108864\n.", "memo number 67,108,864 is out of order"),
}


@pytest.mark.parametrize("name", ROOM)
def test_a_small_pickle_takes_little_memory(name):
    content, says = ROOM[name]
    tracemalloc.start()
    try:
        with pytest.raises(NotPlainData, match=says):
            plain_data(content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60))
def test_garbage_is_no_plain_data(content):
    try:
        read = plain_data(content)
    except NotPlainData:
        return
    # Only what holds no name at all comes here.
    assert repr(pickle.loads(content, encoding="bytes")) == repr(read)


def truncate(name, size):
    return lambda folder: os.truncate(folder / name, size)


def rewrite(**fields):
    """Another first batch, with these in place of what it has."""
    whole = {"data": np.zeros((EACH, 3072), np.uint8), "labels": [1] * EACH}
    content = {name.encode(): value for name, value in {**whole, **fields}.items()}
    return lambda folder: write_pickle(folder / "data_batch_1", content)


BROKEN = {
    "truncated": (truncate("data_batch_2", 2_000), "data_batch_2: not a batch of CIFAR-10: "),
    "empty": (truncate("test_batch", 0), "test_batch: not a batch of CIFAR-10: it ends early"),
    "one missing": (lambda folder: (folder / "data_batch_5").unlink(), "no data_batch_5 beside data_batch_1"),
    "none there": (lambda folder: [path.unlink() for path in folder.iterdir()] and None, "no data_batch_1 in it"),
    "a list": (lambda folder: write_pickle(folder / "data_batch_1", [1]), "no dictionary with data and labels"),
    "too few images": (rewrite(data=np.zeros((2, 3072), np.uint8), labels=[1, 2]), "2 images, not 4"),
    "too few labels": (rewrite(labels=[1]), "it does not have a label for each of its 4 images"),
    "labels of text": (rewrite(labels=["1"] * EACH), "it does not have a label for each"),
    "another class": (rewrite(labels=[10] * EACH), "classes outside 0 to 9"),
    "wide pixels": (rewrite(data=np.zeros((EACH, 3072), np.int64)), "not an array of bytes with 3,072 in a row"),
    "other columns": (rewrite(data=np.zeros((EACH, 3071), np.uint8)), "not an array of bytes with 3,072 in a row"),
    "floats": (rewrite(data=np.zeros((EACH, 3072))), "it has an array of other data than integers"),
    "objects": (rewrite(labels=np.array([[1], []], dtype=object)), "it has an array of other data than integers"),
    "one label": (rewrite(labels=np.int64(1)), "it does not have a label for each"),
    "nested labels": (rewrite(labels=np.zeros((EACH, 1), int)), "it does not have a label for each"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_batch_is_named_in_one_line(tmp_path, no_progress, fault):
    folder, _, _ = batches(tmp_path / "data", EACH)
    change, says = BROKEN[fault]
    change(folder)
    with pytest.raises(UserError, match=f"{says}.*; extract the archive again") as caught:
        Cifar10().prepare(folder, tmp_path / "cache", no_progress)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_binary_batch_is_named(tmp_path, no_progress):
    folder, _, _ = batches(tmp_path / "data", EACH, binary=True)
    os.truncate(folder / "data_batch_4.bin", 3 * 3073 + 5)
    with pytest.raises(UserError, match="data_batch_4.bin: .*not whole images of 3,073: it is truncated"):
        Cifar10().prepare(folder, tmp_path / "cache", no_progress)


def test_neither_layout_says_what_is_expected(tmp_path, no_progress):
    (tmp_path / "data" / "other").mkdir(parents=True)
    with pytest.raises(UserError, match="it has no train/.*cifar-10-batches-py, cifar-10-batches-bin, or"):
        Cifar10().prepare(tmp_path / "data", tmp_path / "cache", no_progress)


@pytest.mark.parametrize("inside", [True, False])
def test_a_directory_that_no_one_may_see_is_named(tmp_path, no_progress, locked, inside):
    data = locked / "data" if inside else locked  # istbench looks for batches in `data`, or for `data` itself
    with pytest.raises(UserError, match=f"^{locked}/.*: Permission denied; make it readable or remove it$"):
        Cifar10().prepare(data, tmp_path / "cache", no_progress)


def test_a_download_is_used_by_later_runs(tmp_path, no_progress, monkeypatch):
    def fake(root, download):
        batches(root, EACH)
        (root / "cifar-10-python.tar.gz").write_bytes(b"archive")

    monkeypatch.setattr("torchvision.datasets.CIFAR10", fake)
    source = Cifar10().fetch("download", tmp_path, no_progress)
    assert source.kind == "cifar10"
    assert Cifar10().prepare(None, tmp_path, no_progress) == source
    assert not list(tmp_path.rglob("*.tar.gz"))


def test_a_refused_download_is_one_line(tmp_path, no_progress, monkeypatch):
    def refuse(root, download):
        shutil.copytree(tmp_path, root / "cifar-10-batches-py", ignore=lambda *_: ["cifar10"])
        raise RuntimeError("File not found or corrupted.")

    monkeypatch.setattr("torchvision.datasets.CIFAR10", refuse)
    for _ in range(2):
        with pytest.raises(UserError, match=r"CIFAR-10 could not be downloaded.*corrupted.*--data DIR") as caught:
            Cifar10().fetch("download", tmp_path, no_progress)
        assert "\n" not in str(caught.value)


def test_an_archive_writes_nothing_outside_of_its_folder(tmp_path, no_progress, monkeypatch):
    def extract(root, download):  # as torchvision and torchaudio do
        with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("../outside"))
        with tarfile.open(root / "cifar-10-python.tar.gz") as archive:
            archive.extractall(root)

    monkeypatch.setattr("torchvision.datasets.CIFAR10", extract)
    with pytest.raises(UserError, match=r"CIFAR-10 could not be downloaded.*outside the destination"):
        Cifar10().fetch("download", tmp_path, no_progress)
    assert not list(tmp_path.rglob("outside"))


def test_a_stored_array_is_what_numpy_stored():
    array = np.arange(12, dtype=np.uint8).reshape(4, 3)
    read = plain_data(pickle.dumps(array, protocol=4))
    assert isinstance(read, StoredArray)
    assert np.array_equal(read.integers(), array)
