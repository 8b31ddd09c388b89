"""Repository text: read as a plain reader reads it, and refused by file and line."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.workloads.extreme_data.read import RepositoryHeader, read_header, read_points

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def plain_reader(text):
    """Labels and features of every point, read line by line; ValueError for what is wrong."""
    header, *lines = text.removesuffix("\n").split("\n")
    points, features, labels = map(int, header.split())
    while lines and (len(lines) > points and not lines[-1].strip()):
        lines.pop()
    if len(lines) != points:
        raise ValueError("points")
    return [_plain_point(line, features, labels) for line in lines]


def _plain_point(line, features, labels):
    words = re.split("[ \t]+", line.removesuffix("\r"))
    own = [] if ":" in words[0] or not words[0] else [_index(word, labels) for word in words.pop(0).split(",")]
    found = {}
    for word in filter(None, words):
        index, _, value = word.partition(":")
        if not NUMBER.fullmatch(value) or _index(index, features) in found:
            raise ValueError(word)
        with np.errstate(over="ignore"):
            found[int(index)] = np.float32(float(value))
        if not np.isfinite(found[int(index)]):
            raise ValueError(word)
    if len(set(own)) < len(own):
        raise ValueError("labels")
    return own, found


def _index(word, below):
    if not re.fullmatch("[0-9]+", word) or int(word) >= below:
        raise ValueError(word)
    return int(word)


def read(path, chunk=1 << 20):
    points = []
    for block in read_points(path, chunk):
        features = np.split(block.features.indices, block.features.ends)[: len(block)]
        values = np.split(block.features.values, block.features.ends)[: len(block)]
        labels = np.split(block.labels.indices, block.labels.ends)[: len(block)]
        points += [
            (own.tolist(), dict(zip(where.tolist(), what, strict=True)))
            for own, where, what in zip(labels, features, values, strict=True)
        ]
    return points


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES = st.one_of(
    FINITE.map(repr),
    FINITE.map(lambda value: f"{value:.9g}"),
    st.floats(-1e30, 1e30).map(lambda value: f"{value:.25f}"),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from([".5", "5.", "+1", "-0", "1e5", "1E-3", "0.000", "1e-400", "3.4028235e38", "1e-45", "0e999"]),
    st.decimals(0, 10**6, allow_nan=False, places=22).map(str),
)
POINTS = st.tuples(
    st.lists(st.integers(0, 9), unique=True, max_size=4),
    st.dictionaries(st.integers(0, 19), VALUES, max_size=6),
)


def written(points, ending="\n"):
    lines = [f"{len(points)} 20 10"]
    for labels, features in points:
        words = [",".join(map(str, labels)), *(f"{index}:{value}" for index, value in features.items())]
        lines.append(" ".join(words))
    return ending.join(lines)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(POINTS, min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]), st.integers(1, 300), st.booleans()
)
def test_what_is_written_is_read_to_the_bit(folder, points, ending, chunk, newline):
    text = written(points, ending) + newline * ending
    (folder / "a.txt").write_bytes(text.encode())
    if not newline and not any(points[-1]):  # a line that is not there
        return
    found = read(folder / "a.txt", chunk)
    expected = plain_reader(text)
    assert found == expected
    bits = [[value.tobytes() for value in features.values()] for _, features in found]
    assert bits == [[value.tobytes() for value in features.values()] for _, features in expected]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(POINTS, min_size=1, max_size=4), st.integers(1, 300))
def test_what_is_damaged_is_read_or_refused_as_by_the_plain_reader(folder, data, points, chunk):
    text = written(points) + "\n"
    at = data.draw(st.integers(len(text.partition("\n")[0]) + 1, len(text) - 1))
    piece = data.draw(st.text("0123456789:,. \t\r\nex-+", max_size=3))
    text = text[:at] + piece + text[at + data.draw(st.integers(0, 3)) :]
    if not text.endswith("\n"):
        text += "\n"
    (folder / "a.txt").write_bytes(text.encode())
    try:
        expected = plain_reader(text)
    except ValueError:
        with pytest.raises(UserError, match=r"a\.txt, line \d+: ") as caught:
            read(folder / "a.txt", chunk)
        assert "\n" not in str(caught.value)
    else:
        assert read(folder / "a.txt", chunk) == expected


def test_a_point_may_lack_labels_features_or_both(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("5 3 4\n 0:1 2:0.5\n0:1\n3,1\n\n2 1:-2\n\n\n")
    assert read(path) == [([], {0: 1, 2: 0.5}), ([], {0: 1}), ([3, 1], {}), ([], {}), ([2], {1: -2})]
    assert read_header(path) == RepositoryHeader(points=5, features=3, labels=4)


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1 3 4\r\n2 1:-2\r\n", encoding="utf-8-sig", newline="")
    assert read(path, 1) == [([2], {1: -2})]
    assert read_header(path) == RepositoryHeader(points=1, features=3, labels=4)


BROKEN = {
    "empty": ("", "line 1: the file is empty; expected a header"),
    "two numbers": ("2 3\n", "line 1: '2 3' is not a header of three numbers"),
    "a word": ("2 3 x\n", "line 1: '2 3 x' is not a header"),
    "no points": ("0 3 4\n", "line 1: 0 points; expected 1"),
    "too many labels": (f"2 3 {2**30}\n", "line 1: 1073741824 labels; expected 1 to 16,777,216"),
    "bytes": ("\x89PNG\n\x1a\n", "line 1: .* is not a header"),
    "too few": ("3 3 4\n1 0:1\n2 1:1\n", "line 4: the file ends after 2 points, its header says 3"),
    "too many": ("1 3 4\n1 0:1\n\n2 1:1\n", "line 4: one more line than the 1 points of the header"),
    "label out of range": ("1 3 4\n4 0:1\n", "line 2: label '4' is not a whole number from 0 to 3"),
    "negative label": ("1 3 4\n-1 0:1\n", "line 2: label '-1' is not a whole number"),
    "comma at the end": ("1 3 4\n1, 0:1\n", "line 2: label '' is not a whole number"),
    "feature out of range": (
        "2 3 4\n1 0:1\n2 0:1 3:1\n",
        "line 3: '3:1' is not INDEX:VALUE with an index from 0 to 2",
    ),
    "no value": ("1 3 4\n1 0:1 2\n", "line 2: '2' is not INDEX:VALUE"),
    "huge index": ("1 3 4\n1 99999999999999999999:1\n", "line 2: '9+:1' is not INDEX:VALUE"),
    "text value": ("2 3 4\n1 0:1\n1 0:1 1:one\n", "line 3: the value of '1:one' is not a finite number"),
    "empty value": ("1 3 4\n1 0: 1:1\n", "line 2: the value of '0:' is not a finite number"),
    "nan": ("1 3 4\n1 0:nan\n", "line 2: the value of '0:nan' is not a finite number"),
    "infinite": ("1 3 4\n1 0:1e39\n", "line 2: the value of '.*1e39' is not a finite number"),
    "repeated label": ("1 3 4\n1,2,1 0:1\n", "line 2: label '1' occurs twice in one point"),
    "repeated feature": ("1 3 4\n1 2:1 2:3\n", "line 2: the feature of '2:3' occurs twice in one point"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_a_broken_file_is_named_with_its_line(tmp_path, fault, chunk):
    text, says = BROKEN[fault]
    (tmp_path / "train.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=f"train.txt, {says}") as caught:
        read(tmp_path / "train.txt", chunk)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("value", ["10", "1.25", "-12.50e+10", ".125"])
def test_a_fault_after_many_features_is_named_at_once(tmp_path, value):
    path = tmp_path / "train.txt"
    features = " ".join(f"{index}:{value}" for index in range(200))
    path.write_text(f"1 200 4\n3 {features} x\n")
    with pytest.raises(UserError, match="line 2: 'x' is not INDEX:VALUE"):
        read(path)


def test_what_is_no_file_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(UserError, match=re.escape(str(path))):
            read_header(path)
