"""What people and broken disks put where a value belongs, for tests with hypothesis."""

import copy
import datetime
import json
import math
import os

from hypothesis import settings
from hypothesis import strategies as st

# A case that takes longer than this hangs, to a user; other tests run beside it.
LONGEST_MS = 10_000

_NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**40, 10**399]),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, 0.5, 1.5, -0.0]),
)
_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", " ", "nan", "inf", "1e300", "1" * 400, "true", "no", "../../x", "a\0b", "x" * 3_000]),
)
SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=8,
)
WORDS = st.one_of(
    _TEXTS.filter(lambda text: "\0" not in text),  # the system passes no NUL in an argument
    _NUMBERS.map(str),
    st.sampled_from(["--", "-1", "1,2", "0x10", "1_000", "٣", "½", "1e-400", "\udcff", "\x1b[31m", "=", "a=b=c"]),
)


def quick(examples):
    """Settings of a test that tries a quarter of `examples` inputs, always the same ones, each in bounded time.

    ISTBENCH_TEST_EXAMPLES in the environment is how many times `examples` are tried instead.
    """
    times = float(os.environ.get("ISTBENCH_TEST_EXAMPLES", "0.25"))
    return settings(
        max_examples=max(1, int(examples * times)), derandomize=True, deadline=LONGEST_MS, database=None
    )


def paths(value, at=()):
    """The path of every part of plain `value`."""
    yield at
    if isinstance(value, dict):
        for key, part in value.items():
            yield from paths(part, (*at, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from paths(part, (*at, index))


@st.composite
def damaged(draw, whole):
    """`whole`, plain and JSON-ready, with one part of it replaced, left out, or joined by another."""
    where = draw(st.sampled_from([path for path in paths(whole) if path]))
    result = copy.deepcopy(whole)
    owner = result
    for key in where[:-1]:
        owner = owner[key]
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
    if how == "replace":
        owner[where[-1]] = draw(VALUES)
    elif how == "remove":
        del owner[where[-1]]
    elif isinstance(owner, dict):
        owner[draw(_TEXTS)] = draw(VALUES)
    else:
        owner.append(draw(VALUES))
    return result


def nested(opening, closing, depth=100_000):
    """Text nested far deeper than anyone writes."""
    return opening * depth + closing * depth


def as_json(value):
    """JSON, or nearly: what is not a number is written as Python writes it."""
    return json.dumps(value)


def as_toml(value):
    """TOML of a table whose values may be anything; what TOML lacks is written as text."""
    lines = [f"{json.dumps(str(key))} = {_inline(part)}" for key, part in value.items()]
    return "\n".join(lines) + "\n"


def _inline(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_inline(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps("" if value is None else value).replace("\\u0000", "\\u0001").replace("\\ud", "\\u0d")


def one_line(error):
    """The error's text, which must be one line that can be printed."""
    text = str(error)
    assert text.isprintable(), text
    assert text.encode()
    assert len(text) < 2000
    return text
