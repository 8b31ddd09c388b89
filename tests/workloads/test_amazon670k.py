"""The extreme classification workload: which files are a data set, the cache, the synthetic points, evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_points import dense

from istbench.base.errors import UserError
from istbench.methods.base import materialise
from istbench.studies.conformance.of_workloads import CHECKS
from istbench.workloads.amazon670k import Amazon670k, Amazon670kOptions
from istbench.workloads.contract import blank_model
from istbench.workloads.extreme_data.files import find_files
from istbench.workloads.extreme_data.synthetic import MadeUp

TRAIN = "3 4 5\n0,2 1:0.5 3:1\n 0:2\n4 2:1\n"
TEST = "2 4 5\n1 1:1\n3,0 2:1 0:0.5\n"
SMALL = Amazon670kOptions(hidden=4, points=300, features=60, labels=40)


def folder(root, **files):
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / f"{name}.txt").write_text(text)
    return root


def opened(data, cache, options=None):
    workload = Amazon670k(options)
    workload.open(workload.prepare(data, cache, lambda *_: None))
    return workload


def labels_of(workload, split):
    every = torch.arange(workload.train_size)
    batches = workload.test_batches() if split == "test" else [workload.train_batch(every, torch.Generator())]
    (labels,) = [labels for _, labels in batches]
    return [own.tolist() for own in labels.indices.tensor_split(labels.offsets[1:-1])]


def propensity_of(source):
    return json.loads((Path(source.path) / "prepared.json").read_text())["propensity"]


@pytest.mark.parametrize("names", [("train", "test"), ("trn", "tst"), ("eurlex_train", "eurlex_test")])
@pytest.mark.parametrize("above", [False, True])
def test_two_files_are_a_data_set(tmp_path, names, above):
    data = folder(tmp_path / "own" / "set", **{names[0]: TRAIN, names[1]: TEST, "labels": "a\nb\n"})
    workload = opened(data.parent if above else data, tmp_path / "cache")
    assert (labels_of(workload, "train"), labels_of(workload, "test")) == ([[0, 2], [], [4]], [[1], [3, 0]])
    points, labels = workload.train_batch(torch.tensor([2, 0]), torch.Generator())
    assert dense(points).tolist() == [[0, 0, 1, 0], [0, 0.5, 0, 1]]
    assert dense(labels).tolist() == [[0, 0, 0, 0, 1], [1, 0, 1, 0, 0]]
    assert workload.build_model().output.weight.shape == (5, 512)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"train": "2 4 5\n 1:0.5\n0:2\n", "test": TEST}, "train.txt: no train"),
        ({"train": TRAIN, "test": "1 4 5\n1:1\n"}, "test.txt: no test"),
        ({"data": "5 4 5\n0 0:1\n1 0:1\n2 0:1\n3 0:1\n 0:1\n"}, "data.txt: no test"),
    ],
)
def test_points_that_all_lack_labels_are_refused_by_file_also_from_the_cache(tmp_path, files, named):
    data = folder(tmp_path / "set", **files)
    for _ in range(2):
        with pytest.raises(UserError, match=f"{named} point has a label; a line must start with its labels"):
            Amazon670k().prepare(data, tmp_path / "cache", lambda *_: None)


def test_one_file_is_split_by_the_files_beside_it(tmp_path):
    text = "5 4 5\n0 0:1\n1 0:1\n2 0:1\n3 0:1\n4 0:1\n"
    data = folder(
        tmp_path / "data", Bibtex_data=text, bibtex_trSplit="\ufeff4 1\n1 2\n", bibtex_tstSplit="2 4\n5 5\n"
    )
    workload = opened(data, tmp_path / "cache")
    assert (labels_of(workload, "train"), labels_of(workload, "test")) == ([[0], [3]], [[1], [4]])


def test_one_file_without_a_split_holds_out_a_fifth_and_says_so(tmp_path, no_progress):
    text = "10 4 10\n" + "".join(f"{label} 0:1\n" for label in range(10))
    path = folder(tmp_path / "data", anything=text) / "anything.txt"
    workload = Amazon670k()
    source = workload.prepare(path, tmp_path / "cache", no_progress)
    assert source.note == "anything.txt has no split: every 5th point is a test point"
    workload.open(source)
    assert labels_of(workload, "test") == [[4], [9]]


def linked(root, files):
    """A folder of links, by name."""
    root.mkdir()
    for name, target in files.items():
        (root / name).symlink_to(target)
    return root


def test_linked_files_go_by_their_links_names(tmp_path):
    store = folder(tmp_path / "store", ab12=TRAIN, cd34=TEST)
    named = {"wiki_train.txt": store / "ab12.txt", "wiki_test.txt": store / "cd34.txt"}
    workload = Amazon670k()
    source = workload.prepare(linked(tmp_path / "data", named), tmp_path / "cache", lambda *_: None)
    workload.open(source)
    assert (labels_of(workload, "train"), labels_of(workload, "test")) == ([[0, 2], [], [4]], [[1], [3, 0]])
    assert propensity_of(source) == "wikipedia"


def test_a_linked_file_given_itself_goes_by_its_links_name(tmp_path, no_progress):
    store = folder(tmp_path / "store", ab12="5 4 5\n" + 5 * "0 0:1\n")
    data = linked(tmp_path / "data", {"amazon.txt": store / "ab12.txt"})
    source = Amazon670k().prepare(data / "amazon.txt", tmp_path / "cache", no_progress)
    assert source.note.startswith("amazon.txt has no split")
    assert source.name == "data"
    assert propensity_of(source) == "amazon"


def test_a_link_is_known_again_as_the_file_it_leads_to(tmp_path):
    plain = folder(tmp_path / "plain", train=TRAIN, test=TEST)
    links = linked(tmp_path / "links", {name: plain / name for name in ("train.txt", "test.txt")})
    assert find_files(links).cache_key() == find_files(plain).cache_key()
    assert find_files(links / "train.txt").cache_key() == find_files(plain / "train.txt").cache_key()


BROKEN = {
    "nothing": ({}, "it has no repository text; expected files named ...train.txt and ...test.txt"),
    "no test": ({"train": TRAIN}, "train.txt: no test file beside it"),
    "two of them": ({"a_train": TRAIN, "b_train": TRAIN, "test": TEST}, "a_train.txt, b_train.txt could each be"),
    "both forms": ({"train": TRAIN, "test": TEST, "data": TEST}, "data.txt, train.txt both hold points"),
    "other labels": (
        {"train": TRAIN, "test": "1 4 9\n1 1:1\n"},
        "test.txt, line 1: 9 labels, but train.txt has 5",
    ),
    "a bad line": ({"train": TRAIN, "test": "1 4 5\n1 1:x\n"}, "test.txt, line 2: the value of '1:x'"),
    "split of words": (
        {"data": TRAIN, "trSplit": "1\nx\n", "tstSplit": "2\n"},
        "trSplit.txt, line 2: expected a whole number",
    ),
    "split out of range": (
        {"data": TRAIN, "trSplit": "1\n", "tstSplit": "4\n"},
        "tstSplit.txt, line 1: expected",
    ),
    "split twice": ({"data": TRAIN, "trSplit": "1\n1\n", "tstSplit": "2\n"}, "trSplit.txt: lists a point twice"),
    "split in both": (
        {"data": TRAIN, "trSplit": "1\n2\n", "tstSplit": "2\n"},
        "shares points with trSplit.txt",
    ),
    "empty split": ({"data": TRAIN, "trSplit": "", "tstSplit": "2\n"}, "trSplit.txt, line 1: the file is empty"),
    "nothing to test on": ({"data": TRAIN}, "no test points"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_no_data_set_is_refused_in_one_line(tmp_path, no_progress, fault):
    files, says = BROKEN[fault]
    data = folder(tmp_path / "data", **files)
    with pytest.raises(UserError) as caught:
        Amazon670k().prepare(data, tmp_path / "cache", no_progress)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_several_data_sets_are_ambiguous(tmp_path, no_progress):
    for name in ("one", "other"):
        folder(tmp_path / "data" / name, train=TRAIN, test=TEST)
    with pytest.raises(UserError, match=r"it has several data sets \(one, other\); give the folder of one"):
        Amazon670k().prepare(tmp_path / "data", tmp_path / "cache", no_progress)


def test_a_file_that_changed_is_read_again(tmp_path, no_progress):
    data = folder(tmp_path / "data", train=TRAIN, test=TEST)
    first = Amazon670k().prepare(data, tmp_path / "cache", no_progress)
    assert Amazon670k().prepare(data, tmp_path / "cache", no_progress) == first
    folder(data, test=TEST.replace("1:1", "1:2"))
    other = Amazon670k().prepare(data, tmp_path / "cache", no_progress)
    assert other.fingerprint != first.fingerprint


def truncate(directory):
    content = (directory / "train_features.npy").read_bytes()
    (directory / "train_features.npy").write_bytes(content[:-4])


def replace_type(directory):
    np.save(directory / "test_labels.npy", np.zeros(3))


def shorten(directory):
    np.save(directory / "train_values.npy", np.zeros(1, np.float32))


@pytest.mark.parametrize("damage", [truncate, replace_type, shorten])
def test_a_damaged_cache_is_named_when_opened_and_made_again_when_prepared(tmp_path, no_progress, damage):
    data = folder(tmp_path / "data", train=TRAIN, test=TEST)
    source = Amazon670k().prepare(data, tmp_path / "cache", no_progress)
    damage(Path(source.path))
    with pytest.raises(UserError, match=f"prepared data is damaged .*remove {source.path}") as caught:
        Amazon670k().open(source)
    assert "\n" not in str(caught.value)
    Amazon670k().open(Amazon670k().prepare(data, tmp_path / "cache", no_progress))


def test_indices_beyond_the_columns_are_made_again(tmp_path, no_progress):
    data = folder(tmp_path / "data", train=TRAIN, test=TEST)
    source = Amazon670k().prepare(data, tmp_path / "cache", no_progress)
    labels = Path(source.path) / "test_labels.npy"
    np.save(labels, np.array([1, 99, 0], np.int32))
    workload = Amazon670k()
    workload.open(workload.prepare(data, tmp_path / "cache", no_progress))
    assert labels_of(workload, "test") == [[1], [3, 0]]


@pytest.mark.parametrize(("name", "kind"), [("Amazon-x", "amazon"), ("wiki10", "wikipedia"), ("debian", "other")])
def test_propensities_go_by_the_files_names(tmp_path, no_progress, name, kind):
    data = folder(tmp_path / name, train=TRAIN, test=TEST)
    source = Amazon670k().prepare(data, tmp_path / "cache", no_progress)
    assert propensity_of(source) == kind


def test_the_synthetic_points_are_as_asked_for_and_labelled(tmp_path, no_progress):
    workload = Amazon670k(SMALL)
    source = workload.fetch("synthetic", tmp_path, no_progress)
    assert (source.kind, source.train, source.test, source.seen) == (
        "synthetic", 300, 60, "SYNTHETIC points, 360 points",
    )  # fmt: skip
    assert "synthetic points" in source.note
    assert workload.prepare(None, tmp_path, no_progress) == source
    workload.open(source)
    points, labels = workload.train_batch(torch.arange(300), torch.Generator())
    assert (points.columns, labels.columns) == (60, 40)
    torch.testing.assert_close(dense(points).square().sum(1), torch.ones(300))
    assert dense(labels).max() == 1
    for check in CHECKS:
        assert check(workload)


@pytest.mark.usefixtures("one_free_gigabyte")
def test_points_that_the_disk_cannot_hold_are_refused_before_they_are_drawn(tmp_path, no_progress, monkeypatch):
    monkeypatch.setattr(MadeUp, "chunks", lambda made_up: None)  # an error of its own, if drawn
    with pytest.raises(UserError, match=r"of 1,000,010,000 points takes .* GB.*1.0 GB are free.*use fewer points"):
        Amazon670k(Amazon670kOptions(points=10**9)).prepare(None, tmp_path, no_progress)
    assert not list(tmp_path.rglob("*.npy"))


def test_the_room_for_synthetic_points_is_a_little_more_than_they_take(tmp_path, no_progress):
    made_up = MadeUp(points=2_000, features=5_000, labels=5_000, seed=0)
    source = Amazon670k(Amazon670kOptions(points=2_000)).prepare(None, tmp_path, no_progress)
    taken = sum(path.stat().st_size for path in Path(source.path).glob("*.npy"))
    assert 1 < made_up.bytes_on_disk / taken < 1.5


def test_synthetic_labels_have_a_long_tail():
    made_up = MadeUp(points=20_000, features=2_000, labels=10_000, seed=0)
    counts, entries = np.zeros(10_000, np.int64), 0
    for split, points in made_up.chunks():
        if split == "train":
            counts += np.bincount(points.labels.indices, minlength=10_000)
            entries += len(points.labels.indices)
    assert 4.5 < entries / 20_000 < 6
    assert np.median(counts) < counts.mean() / 2
    assert np.sort(counts)[-100:].sum() > 0.05 * entries


def test_the_synthetic_points_can_be_learnt(tmp_path, no_progress):
    workload = Amazon670k(Amazon670kOptions(hidden=32, points=2_000, features=500, labels=100, block=64))
    workload.open(workload.prepare(None, tmp_path, no_progress))
    model = blank_model(workload)
    model = materialise(model, workload, 0, torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(150):
        indices = torch.arange(step * 128, (step + 1) * 128) % workload.train_size
        optimizer.zero_grad()
        workload.loss(model, workload.train_batch(indices, torch.Generator())).backward()
        optimizer.step()
    with torch.no_grad():
        found = workload.evaluate(model, workload.test_batches())
    assert found["precision@1"] > 0.5
    assert {"precision@3", "precision@5", "ndcg@1", "psp@5", "loss"} <= set(found)
    batches = list(workload.test_batches())
    with torch.no_grad():
        found_densely = sum(float(workload.loss(model, batch)) * len(batch[1]) for batch in batches)
    assert found["loss"] == pytest.approx(found_densely / sum(len(batch[1]) for batch in batches), rel=1e-4)


def test_a_download_says_where_the_data_is(tmp_path, no_progress):
    with pytest.raises(UserError, match="Extreme Classification Repository.*--data DIR"):
        Amazon670k().fetch("download", tmp_path, no_progress)
