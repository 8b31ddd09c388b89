"""Find the labels, features and values in lines of repository text, `l1,l2 f:v f:v`, in compiled code."""
# mypy: disable-error-code="no-untyped-def"

from enum import IntEnum

from istbench.base.jit import jit

_LARGEST = 1 << 40  # beyond every index


class ScanFault(IntEnum):
    """The reason why a scan stopped."""

    NONE = 0
    LABEL = 1
    LABEL_TWICE = 2
    FEATURE = 3
    FEATURE_TWICE = 4
    VALUE = 5


@jit
def scan_lines(
    text, stop, points, features, labels, done, seen_features, seen_labels,
    feature_ends, found_features, value_places, label_ends, found_labels,
):  # fmt: skip
    """Parse points, one per line, up to `stop`, to `points` points, or to the first fault.

    Args:
        text: uint8, whole lines, each with a newline; `stop` is the end of the last one.
        features, labels: all indices must be below these.
        done: number of points in earlier chunks, which gives every point a number of its own.
        seen_features, seen_labels: int32 [features] and [labels], the number of the last point with each.
        feature_ends, found_features, label_ends, found_labels: output, as in `Rows`.
        value_places: int64 [3, _], output: for each feature the start of its word, and the start and the end of its
            value, which has the characters of a number. The caller parses it.

    Returns:
        The fault, the position in `text` of the fault or the next line, and the numbers of points, features and
        labels.
    """
    at, point, feature_count, label_count = 0, 0, 0, 0
    while at < stop and point < points:
        number = done + point + 1
        fault, at, label_count = _labels(text, at, labels, number, seen_labels, found_labels, label_count)
        if fault != 0:
            return fault, at, point, feature_count, label_count
        while True:
            at = _after_blanks(text, at)
            if text[at] == 10:
                at += 1
                break
            began = at
            index, at = _whole(text, at)
            if at == began or text[at] != 58 or index >= features:
                return 3, began, point, feature_count, label_count
            if seen_features[index] == number:
                return 4, began, point, feature_count, label_count
            seen_features[index] = number
            value_began = at + 1
            at = _number_end(text, value_began)
            if at == value_began or not _ends_word(text[at]):
                return 5, began, point, feature_count, label_count
            found_features[feature_count] = index
            value_places[0, feature_count] = began
            value_places[1, feature_count], value_places[2, feature_count] = value_began, at
            feature_count += 1
        feature_ends[point], label_ends[point] = feature_count, label_count
        point += 1
    return 0, at, point, feature_count, label_count


@jit
def _labels(text, at, labels, number, seen, found, count):
    """Parse the labels at the start of a line: the fault, the position of their end or of it, and the label count.

    A first word with a colon is a feature.
    """
    start = at
    if _ends_word(text[at]):
        return 0, at, count
    while True:
        began = at
        index, at = _whole(text, at)
        if text[at] == 58 and began == start and at > began:
            return 0, start, count
        if at == began or index >= labels or not (text[at] == 44 or _ends_word(text[at])):
            return 1, began, count
        if seen[index] == number:
            return 2, began, count
        seen[index] = number
        found[count] = index
        count += 1
        if text[at] != 44:
            return 0, at, count
        at += 1


@jit
def _ends_word(byte):
    return byte == 32 or byte == 10 or byte == 9 or byte == 13


@jit
def _after_blanks(text, at):
    while text[at] == 32 or text[at] == 9:
        at += 1
    return at + 1 if text[at] == 13 and text[at + 1] == 10 else at


@jit
def _whole(text, at):
    """The whole number at `at` (or a number above every index), and its end."""
    number = 0
    while 48 <= text[at] <= 57:
        if number < _LARGEST:
            number = number * 10 + (text[at] - 48)
        at += 1
    return number, at


@jit
def _number_end(text, at):
    """The end of the digits, signs, points and exponents at `at`."""
    while 48 <= text[at] <= 57 or text[at] in (43, 45, 46, 69, 101):
        at += 1
    return at
