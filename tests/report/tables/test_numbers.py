"""How numbers are written."""

import math

import pytest

from istbench.report.tables.numbers import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (12.34, "12.3"), (99.96, "100"), (123.4, "123"),
        (12345.6, "12346"), (math.inf, "∞"), (1e-9, "1.00e-09"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert number(value) == text
