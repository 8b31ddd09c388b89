"""Bandwidths and times as people type them."""

import pytest

from istbench.base.errors import UserError
from istbench.base.units import clock, parse_bandwidth, parse_parameters, parse_period, parse_time, period_text


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("100mbit", 1e8), (" 2.5 Gbit ", 2.5e9), ("800kbit", 8e5), (".5tbit", 5e11), ("9600bit", 9600.0),
        ("1Gbps", 1e9), ("100 Mbps", 1e8), ("1gbps", 1e9), ("1 Gbit/s", 1e9), ("1GBIT/S", 1e9), ("10 Gb/s", 1e10),
        ("1e9", 1e9), ("1E9", 1e9), ("+100000000", 1e8), ("1e3mbit", 1e9), ("3 bits/s", 3.0),
    ],
)  # fmt: skip
def test_bandwidths(text, bits):
    assert parse_bandwidth(text) == bits


@pytest.mark.parametrize(
    "text",
    ["", "100", "mbit", "0gbit", "-1gbit", "1 gbit 2", "nan gbit", "inf", "1e99", "9" * 400 + "bit", "1gbit/h"],
)
def test_what_is_no_bandwidth_is_told_with_examples(text):
    with pytest.raises(UserError, match="^--at: .* is not a bandwidth; .* 100mbit, 1Gbps, 2.5 Gbit/s, or 1e9"):
        parse_bandwidth(text, "--at")


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1GB/s", "8gbit for bytes, or 1gbit"), ("1gb", "8gbit for bytes"), ("12.5 MBps", "100mbit for bytes"),
        ("1gb/s", "8gbit for bytes"), ("3 GiB/s", "24gbit"), ("1gbyte", "8gbit"),
    ],
)  # fmt: skip
def test_bytes_are_not_guessed(text, bits):
    with pytest.raises(UserError, match=f"is not a bandwidth in bits/s: a B means bytes; write {bits}"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20ms", 0.02), ("20 ms", 0.02), ("0.02", 0.02), ("0.02s", 0.02), ("60us", 60e-6), ("60 µs", 60e-6),
        ("1e-3", 1e-3), ("0", 0.0), ("3 S", 3.0),
    ],
)  # fmt: skip
def test_times(text, seconds):
    assert parse_time(text) == pytest.approx(seconds)


def test_a_time_without_its_unit_is_told_so():
    with pytest.raises(UserError, match="^--latency: '20' has no unit; write 20ms or 20s$"):
        parse_time("20", "--latency")


@pytest.mark.parametrize("text", ["", "ms", "-1ms", "2h", "3601s", "nan", "1e9ms", "1e999", "1s 2", "20mſ", "٢٠ms"])
def test_what_is_no_time_is_told_with_examples(text):
    with pytest.raises(UserError, match="^--latency: .* is not a time .* 20ms or 0.5s"):
        parse_time(text, "--latency")


@pytest.mark.parametrize(
    ("seconds", "text"), [(-2.0, "0:00"), (59.6, "1:00"), (100.0, "1:40"), (7380.0, "2:03:00")]
)
def test_seconds_as_a_clock_shows_them(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("90s", 90.0, "90 s"), ("15 min", 900.0, "15 min"), ("6h", 21_600.0, "6 h"), ("30d", 2_592_000.0, "30 d"),
        ("1.5H", 5400.0, "90 min"), ("0.5s", 0.5, "0.5 s"),
    ],
)  # fmt: skip
def test_periods(text, seconds, shown):
    assert parse_period(text) == seconds
    assert period_text(seconds) == shown


@pytest.mark.parametrize("text", ["", "6", "h", "-1h", "0s", "6 weeks", "nan", "1e99d", "6h 3min"])
def test_what_is_no_period_is_told_with_examples(text):
    with pytest.raises(UserError, match="^--mtbf: .* is not a period; .* 90s, 15min, 6h or 30d"):
        parse_period(text, "--mtbf")


@pytest.mark.parametrize(
    ("text", "count"),
    [("125M", 125_000_000), ("1.5 b", 1_500_000_000), ("30,846,720", 30_846_720), ("1e8", 10**8)],
)  # fmt: skip
def test_parameters(text, count):
    assert parse_parameters(text) == count


@pytest.mark.parametrize("text", ["", "M", "0", "0.4", "-1M", "1e15", "1e999", "9" * 50, "12 MB"])
def test_what_is_no_number_of_parameters_is_told_with_examples(text):
    with pytest.raises(UserError, match="^--parameters .* is not a number such as 125M"):
        parse_parameters(text, "--parameters")
