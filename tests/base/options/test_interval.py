"""Local steps or train seconds between two evaluations, in one field."""

import msgspec
import pytest
from garbage import VALUES, quick
from hypothesis import given

from istbench.base.decode import decode_own, encode_own
from istbench.base.options.interval import Interval


@pytest.mark.parametrize(
    ("written", "interval"),
    [
        (200, Interval(steps=200)),
        ("200", Interval(steps=200)),
        ("30s", Interval(seconds=30)),
        ("0.5s", Interval(seconds=0.5)),
        ("1234.5678s", Interval(seconds=1234.5678)),
        ("2000000s", Interval(seconds=2e6)),
        ("0.00001s", Interval(seconds=1e-5)),
        ("+200", Interval(steps=200)),
        (".5s", Interval(seconds=0.5)),
        ("+30.s", Interval(seconds=30)),
    ],
)
def test_what_is_written_is_read(written, interval):
    assert Interval.decode(written) == interval
    plain = msgspec.json.encode({"every": interval}, enc_hook=encode_own)
    assert msgspec.json.decode(plain, type=dict[str, Interval], dec_hook=decode_own) == {"every": interval}


@pytest.mark.parametrize(
    "written",
    [
        0,
        -1,
        True,
        2.5,
        "0s",
        ".s",
        "+s",
        "++5",
        "٣",
        "-3s",
        "1e3s",
        "nans",
        "s",
        "",
        "30 s",
        2**41,
        "9" * 20 + "s",
        None,
    ],
)
def test_anything_else_says_what_it_must_be(written):
    with pytest.raises(ValueError, match="must be local steps, such as 200, or train seconds, such as 30s"):
        Interval.decode(written)


@quick(100)
@given(value=VALUES)
def test_whatever_is_read_is_one_of_the_two(value):
    try:
        interval = Interval.decode(value)
    except ValueError:
        return
    assert (interval.steps is None) != (interval.seconds is None)
    assert (interval.steps or interval.seconds) > 0
