"""The cache of prepared features: made once, whole or not at all."""

import errno
import json
import multiprocessing
import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from istbench.base.errors import UserError
from istbench.launch.processes import local
from istbench.workloads.base import DataSource
from istbench.workloads.prepared import open_summary
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data import build
from istbench.workloads.speech_data.build import SpeechSummary, open_split, prepared
from istbench.workloads.speech_data.words import WORDS

LABELS = np.arange(10)
IS_TEST = np.arange(10) % 3 == 0


def features(first, count):
    """Clip i has i in every feature."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], 4096, axis=1)


def pieces():
    """Ten clips in three pieces."""
    for own in (np.arange(0, 4), np.arange(4, 7), np.arange(7, 10)):
        yield features(own[0], len(own)), LABELS[own], IS_TEST[own]


def prepare(cache, progress, key=None, chunks=pieces):
    """Prepare `chunks`, as if two clips had been converted."""
    path, summary = prepared(cache, "kind", key or {"a": 1}, WORDS, 10, chunks(), progress, converted=lambda: 2)
    counts = {"train": summary.train, "test": summary.test}
    return DataSource(kind="kind", path=str(path), fingerprint=summary.fingerprint, **counts)


def opened(directory, split):
    return open_split(Path(directory), open_summary(Path(directory), SpeechSummary), split)


FORKED = multiprocessing.get_context("forkserver")


def start_preparing(cache, clips_per_word):
    """A process that prepares a synthetic corpus, and what tells of its progress, then the fingerprint."""
    told, tells = FORKED.Pipe(duplex=False)
    local.preload()  # or later tests would have a fork server without istbench
    process = FORKED.Process(target=tell_of_preparing, args=(cache, clips_per_word, tells))
    process.start()
    tells.close()
    return process, told


def tell_of_preparing(cache, clips_per_word, tells):
    workload = Speech(SpeechOptions(clips_per_word=clips_per_word))
    source = workload.prepare(None, cache, lambda *event: tells.send(event))
    tells.send(source.fingerprint)


def next_told(told):
    assert told.poll(120)
    return told.recv()


def test_clips_keep_their_order_within_their_split(tmp_path, no_progress):
    source = prepare(tmp_path, no_progress)
    assert (source.train, source.test) == (6, 4)
    for split, members in (("train", ~IS_TEST), ("test", IS_TEST)):
        arrays = opened(source.path, split)
        assert isinstance(arrays.samples, np.memmap)
        assert np.array_equal(arrays.labels, LABELS[members])
        assert np.array_equal(arrays.samples, features(0, 10)[members])


def test_the_second_time_nothing_is_done(tmp_path, no_progress):
    def never():
        raise AssertionError("filled again")
        yield

    source = prepare(tmp_path, no_progress)
    assert prepare(tmp_path, no_progress, chunks=never) == source
    other = prepare(tmp_path, no_progress, {"a": 2})
    assert other.path != source.path
    assert other.fingerprint == source.fingerprint


def test_a_filling_that_fails_leaves_nothing(tmp_path, no_progress):
    def fail():
        yield next(pieces())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, no_progress, chunks=fail)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert prepare(tmp_path, no_progress).train == 6


def test_a_damaged_directory_is_made_again(tmp_path, no_progress):
    source = prepare(tmp_path, no_progress)
    file = Path(source.path) / "test_features.npy"
    os.truncate(file, 1000)
    with pytest.raises(UserError, match="damaged"):
        opened(source.path, "test")
    assert prepare(tmp_path, no_progress) == source
    opened(source.path, "test")


@pytest.mark.processes
def test_a_killed_process_leaves_no_half_cache(tmp_path, no_progress):
    process, told = start_preparing(tmp_path, clips_per_word=3)
    next_told(told)
    process.kill()
    process.join()
    assert not list((tmp_path / "speech").glob("synthetic-*"))
    speech = Speech(SpeechOptions(clips_per_word=3))
    source = speech.prepare(None, tmp_path, no_progress)
    assert source.train + source.test == 3 * 35
    assert not list((tmp_path / "speech").glob(".*.partial"))


@pytest.mark.processes
def test_two_processes_prepare_at_once(tmp_path):
    started = [start_preparing(tmp_path, clips_per_word=3) for _ in range(2)]
    answers = []
    for process, told in started:
        while not isinstance(said := next_told(told), str):
            pass  # of its progress
        answers.append(said)
        process.join()
    assert len(set(answers)) == 1
    assert len(answers[0]) == 64
    assert len(list((tmp_path / "speech").glob("synthetic-*"))) == 1


def test_a_full_disk_is_said_so(tmp_path, no_progress):
    def full():
        yield next(pieces())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UserError, match=f"cannot write prepared data to {tmp_path}: the disk is full"):
        prepare(tmp_path, no_progress, chunks=full)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, no_progress):
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(UserError, match=f"cannot write prepared data to {occupied}/cache: "):
        prepare(occupied / "cache", no_progress)


def lie(**fields):
    """Write a summary with other `fields`."""

    def change(directory):
        summary = json.loads((directory / "prepared.json").read_text())
        (directory / "prepared.json").write_text(json.dumps({**summary, **fields}))

    return change


def save(name, array):
    """Write another array, and its size into the summary."""

    def change(directory):
        np.save(directory / name, array, allow_pickle=True)
        sizes = {path.name: path.stat().st_size for path in directory.glob("*.npy")}
        lie(bytes=sizes)(directory)

    return change


def replace_by(make):
    """Something else in place of the summary."""

    def change(directory):
        (directory / "prepared.json").unlink()
        make(directory / "prepared.json")

    return change


def _in_its_place(make):
    def change(directory):
        shutil.rmtree(directory)
        make(directory)

    return change


BROKEN = {
    "garbage": replace_by(lambda path: path.write_bytes(b"\xff{]")),
    "a list": replace_by(lambda path: path.write_text("[1, 2]")),
    "deep": replace_by(lambda path: path.write_text("[" * 100_000)),
    "pipe": replace_by(os.mkfifo),
    "folder": replace_by(Path.mkdir),
    "no fingerprint": replace_by(lambda path: path.write_text('{"bytes": {}, "train": 6, "test": 4}')),
    "no sizes": lie(bytes={}),
    "sizes elsewhere": lie(bytes={"../../file": 1}),
    "sizes of no number": lie(bytes={"train_features.npy": "large"}),
    "fingerprint": lie(fingerprint=["a"]),
    "other counts": lie(train=5, test=5),
    "negative counts": lie(train=-1),
    "huge counts": lie(train=10**400),
    "no number of converted clips": lie(converted=None),
    "a negative number of converted clips": lie(converted=-1),
    "no words": lie(words=None),
    "one word": lie(words=["yes"]),
    "words of no text": lie(words=[1, 2]),
    "a word without a name": lie(words=[*WORDS, ""]),
    "an endless word": lie(words=[*WORDS, "a" * 256]),
    "too many words": lie(words=["a"] * 10_001),
    "fewer words than labels": lie(words=WORDS[:9]),
    "pickle": save("train_labels.npy", np.array([print], dtype=object)),
    "features": save("test_features.npy", np.zeros((4, 5), np.float32)),
    "number of features": save("test_features.npy", np.zeros((3, 4096), np.float32)),
    "type of features": save("test_features.npy", np.zeros((4, 4096), np.float64)),
    "labels": save("train_labels.npy", np.full(6, 35)),
    "labels below": save("train_labels.npy", np.full(6, -1)),
    "mean": save("train_mean.npy", np.full(4096, np.nan, np.float32)),
    "a file in its place": _in_its_place(lambda path: path.write_text("file")),
    "a pipe in its place": _in_its_place(os.mkfifo),
    "a dangling link in its place": _in_its_place(lambda path: path.symlink_to("nowhere")),
    "a link in its place": _in_its_place(lambda path: path.symlink_to(path.parent)),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_broken_or_lies_is_made_again(tmp_path, no_progress, fault):
    source = prepare(tmp_path, no_progress)
    (tmp_path / "file").write_text("stays")
    content = {path.name: path.read_bytes() for path in Path(source.path).iterdir()}
    BROKEN[fault](Path(source.path))
    assert prepare(tmp_path, no_progress) == source
    assert {path.name: path.read_bytes() for path in Path(source.path).iterdir()} == content
    assert (tmp_path / "file").read_text() == "stays"


def test_an_array_that_goes_bad_later_is_named(tmp_path, no_progress):
    directory = Path(prepare(tmp_path, no_progress).path)
    header = np.lib.format.magic(1, 0) + struct.pack("<H", 118)
    lying = "{'descr': '<i8', 'fortran_order': False, 'shape': (" + "9" * 15 + ",), }"
    for content in (b"", b"\x93NUMPY", pickle.dumps(print), header + lying.ljust(117).encode() + b"\n"):
        (directory / "train_labels.npy").write_bytes(content)
        with pytest.raises(UserError, match=f"prepared data is damaged .*: remove {directory}, and istbench"):
            opened(directory, "train")
    (directory / "train_labels.npy").unlink()
    os.mkfifo(directory / "train_labels.npy")
    with pytest.raises(UserError, match="prepared data is damaged"):
        opened(directory, "train")


def test_a_summary_that_goes_bad_later_is_named(tmp_path, no_progress):
    directory = Path(prepare(tmp_path, no_progress).path)
    assert (open_summary(directory, SpeechSummary).words, open_summary(directory, SpeechSummary).converted) == (
        WORDS,
        2,
    )
    for damage in ("garbage", "one word", "pipe"):
        BROKEN[damage](directory)
        with pytest.raises(
            UserError, match=f"prepared data is damaged .*: remove {directory}, and istbench"
        ) as caught:
            open_summary(directory, SpeechSummary)
        assert "\n" not in str(caught.value)
        (directory / "prepared.json").unlink()
        (directory / "prepared.json").write_text("{}")


def test_a_lock_that_is_a_pipe_does_not_hold_things_up(tmp_path, no_progress):
    source = prepare(tmp_path, no_progress)
    (lock,) = tmp_path.glob(".*.lock")
    lock.unlink()
    os.mkfifo(lock)
    shutil.rmtree(source.path)
    assert prepare(tmp_path, no_progress) == source


@pytest.mark.usefixtures("one_free_gigabyte")
def test_a_corpus_that_the_disk_cannot_hold_is_refused_before_it_is_made(tmp_path, no_progress, monkeypatch):
    monkeypatch.setattr(build.subprocess, "Popen", None)  # an error of its own, if rendered
    with pytest.raises(
        UserError, match=r"takes 601.3 GB.*1.0 GB are free in .*fewer clips_per_word.*ISTBENCH_CACHE"
    ):
        Speech(SpeechOptions(clips_per_word=2**20)).prepare(None, tmp_path / "cache", no_progress)
    assert not list((tmp_path / "cache").rglob("*.npy"))
