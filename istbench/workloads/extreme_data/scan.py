"""Parse lines of repository text, `l1,l2 f:v f:v`, in compiled code."""
# mypy: disable-error-code="no-untyped-def"

from enum import IntEnum

import numpy as np

from istbench.base.jit import jit

POWERS = np.array([float(f"1e{exponent}") for exponent in range(-308, 309)])
"""Powers of ten from 1e-308 to 1e308, each the nearest double."""

_DIGITS = 19  # digits of a number that fit in 64 bits
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
    text, stop, points, features, labels, done, seen_features, seen_labels, powers,
    feature_ends, found_features, found_values, label_ends, found_labels, doubtful,
):  # fmt: skip
    """Parse points, one per line, up to `stop`, to `points` points, or to the first fault.

    Args:
        text: uint8, whole lines, each with a newline; `stop` is the end of the last one.
        features, labels: all indices must be below these.
        done: number of points in earlier chunks, which gives every point a number of its own.
        seen_features, seen_labels: int32 [features] and [labels], the number of the last point with each.
        powers: `POWERS`.
        feature_ends, found_features, found_values, label_ends, found_labels: output, as in `Rows`.
        doubtful: int64 [_, 3], output: values that a double does not determine, as number of the value, start and
            end of its text. The caller parses them again with all digits.

    Returns:
        The fault, the position in `text` of the fault or the next line, and the numbers of points, features, labels
        and doubtful values.
    """
    at, point, feature_count, label_count, doubts = 0, 0, 0, 0, 0
    while at < stop and point < points:
        number = done + point + 1
        fault, at, label_count = _labels(text, at, labels, number, seen_labels, found_labels, label_count)
        if fault != 0:
            return fault, at, point, feature_count, label_count, doubts
        while True:
            at = _after_blanks(text, at)
            if text[at] == 10:
                at += 1
                break
            began = at
            index, at = _whole(text, at)
            if at == began or text[at] != 58 or index >= features:
                return 3, began, point, feature_count, label_count, doubts
            if seen_features[index] == number:
                return 4, began, point, feature_count, label_count, doubts
            seen_features[index] = number
            value_began = at + 1
            value, certain, at = _decimal(text, value_began, powers)
            if at == value_began or not _ends_word(text[at]):
                return 5, began, point, feature_count, label_count, doubts
            if not certain:
                doubtful[doubts, 0], doubtful[doubts, 1], doubtful[doubts, 2] = feature_count, value_began, at
                doubts += 1
            found_features[feature_count], found_values[feature_count] = index, value
            feature_count += 1
        feature_ends[point], label_ends[point] = feature_count, label_count
        point += 1
    return 0, at, point, feature_count, label_count, doubts


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
def _decimal(text, at, powers):
    """The number at `at` as a double, whether it rounds to the right float32 for certain, and its end.

    Without a number, the end equals the start.
    """
    began = at
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    digits, significant, exponent, any_digit, fraction = np.uint64(0), 0, 0, False, False
    while True:
        byte = text[at]
        if 48 <= byte <= 57:
            any_digit = True
            if significant < _DIGITS:
                digits = digits * np.uint64(10) + np.uint64(byte - 48)
                significant += 1 if digits > 0 else 0
                exponent -= fraction
            else:
                exponent += not fraction
        elif byte == 46 and not fraction:
            fraction = True
        else:
            break
        at += 1
    if any_digit and (text[at] == 101 or text[at] == 69):
        at += 1
        minus = text[at] == 45
        if minus or text[at] == 43:
            at += 1
        power_began = at
        power, at = _whole(text, at)
        any_digit = at > power_began
        exponent += -power if minus else power
    if not any_digit:
        return 0.0, True, began
    if digits == 0:
        return -0.0 if negative else 0.0, True, at
    if not -308 <= exponent <= 308:
        return 0.0, False, at
    value = float(digits) * powers[exponent + 308]
    # The error is at most three roundings. The caller parses numbers outside the normal range of float32 again.
    certain = np.float32(value * (1 - 8e-16)) == np.float32(value * (1 + 8e-16)) and 1e-37 < value < 3e38
    return -value if negative else value, certain, at
