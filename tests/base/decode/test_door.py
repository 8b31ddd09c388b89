"""What comes from outside is read in bounds and decoded into a type; errors name the place and what it must be."""

import os
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from istbench.base.decode import (
    convert,
    decode_json,
    literal_choices,
    parse_toml,
    read_text,
    toml_lines,
    type_at,
    utf8_path,
)
from istbench.base.errors import UserError, printable, shown


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    steps: Annotated[int, Meta(ge=1, le=100)]
    kind: Literal["sgd", "adam"] = "sgd"
    share: Annotated[float, Meta(ge=0, lt=1)] | None = None


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    inner: list[Inner] = []
    named: dict[str, Inner] = {}
    flag: bool = False


def refused(value):
    with pytest.raises(UserError) as caught:
        convert(value, Outer, lambda path: "/".join(map(str, path)) or "all")
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "name is missing"),
        ({"name": 3}, "name must be text, not 3"),
        ({"name": "a", "nam": 1}, "nam: unknown name; did you mean 'name'? Known: flag, inner, name, named"),
        ({"name": "a", "flag": 1}, "flag must be true or false, not 1"),
        ({"name": "a", "inner": {}}, "inner must be a list, not {}"),
        ({"name": "a", "inner": [{"steps": 1}, 3]}, "inner/1 must be a table, not 3"),
        ({"name": "a", "inner": [{"steps": 0}]}, "inner/0/steps must be a whole number of at least 1, not 0"),
        ({"name": "a", "inner": [{"steps": 101}]}, "inner/0/steps must be a whole number of at most 100, not 101"),
        ({"name": "a", "inner": [{"steps": True}]}, "inner/0/steps must be a whole number, not True"),
        ({"name": "a", "inner": [{"steps": 2.0}]}, "inner/0/steps must be a whole number, not 2.0"),
        (
            {"name": "a", "inner": [{"steps": 10**400}]},
            "inner/0/steps must be a whole number of at most 100, not 1000",
        ),
        ({"name": "a", "inner": [{"steps": 1, "kind": "x"}]}, "inner/0/kind must be one of sgd, adam, not 'x'"),
        ({"name": "a", "inner": [{"steps": 1, "share": 1}]}, "inner/0/share must be a number below 1, not 1"),
        (
            {"name": "a", "inner": [{"steps": 1, "share": float("nan")}]},
            "share must be a number of at least 0, not nan",
        ),
        ({"name": "a", "inner": [{"steps": 1, "share": float("inf")}]}, "share must be a number below 1, not inf"),
        ({"name": "a", "named": {"x": {"stepz": 1}}}, "did you mean 'steps'"),
        (3, "all must be a table, not 3"),
    ],
)
def test_what_is_wrong_is_said_of_its_place(value, message):
    assert message in refused(value)


def test_texts_stand_for_numbers_only_where_they_may():
    place = lambda path: "it"  # noqa: E731
    assert convert("3", int, place, text=True) == 3
    with pytest.raises(UserError, match="it must be a whole number, not '3'"):
        convert("3", int, place)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file: not JSON (Input data was truncated); mend it"),
        (b'{"name": NaN}', "file: not JSON (invalid character (byte 9)); mend it"),
        (b'{"name": "a", "inner": [{"steps": 1e999}]}', "file: inner[0].steps is out of range"),
        (b'{"name": "\xff"}', "file: not JSON"),
        (b"[" * 100_000, "file: it must be a table; mend it"),
        (b'{"name": "a", "flag": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "file: "),
    ],
)
def test_json_that_is_none_names_the_file(content, message):
    with pytest.raises(UserError) as caught:
        decode_json(content, Outer, "file", "mend it")
    assert str(caught.value).startswith(message)


TOML = """\
name = "a"

[[inner]]
steps = 1

[[inner]]
kind = "adam"
steps = 0

[named]
x = {steps = 1, kind = "lion"}
[named.y]
steps = 3
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1), (("name",), 1), (("inner", 0, "steps"), 4), (("inner", 1, "steps"), 8), (("inner", 1), 6),
        (("named", "x", "kind"), 11), (("named", "y", "steps"), 13),
    ],
)  # fmt: skip
def test_a_value_of_toml_has_a_line(path, line):
    assert toml_lines(TOML, "f.toml")(path).startswith(f"f.toml, line {line}: ")


def test_toml_that_is_none_names_the_line():
    with pytest.raises(UserError, match="f.toml, line 2: not TOML"):
        parse_toml("a = 1\nb = ]\n", "f.toml")
    with pytest.raises(UserError, match="f.toml: nested too deep"):
        parse_toml("a = " + "[" * 5000, "f.toml")
    with pytest.raises(UserError, match="f.toml"):
        parse_toml(f"a = {'9' * 6000}", "f.toml")


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    (tmp_path / "text").write_text("π")
    assert read_text(tmp_path / "text", "text") == "π"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 2**34)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, message in (
        ("pipe", "is a pipe, not a file; give text"),
        (".", "is a directory, not a file"),
        ("none", "no file .*none; give text"),
        ("tetx", r"no file .*tetx; did you mean 'text'\?$"),
        ("bytes", "is not UTF-8 text"),
        ("large", "has 17,179,869,184 bytes, more than"),
        ("loop", "cannot read .*loop"),
        ("a\0b", "is not the name of a file"),
    ):
        with pytest.raises(UserError, match=message):
            read_text(tmp_path / name, "text")
    with pytest.raises(UserError, match="/dev/null is a device or socket, not a file"):
        read_text(tmp_path / "/dev/null", "text")


@pytest.mark.parametrize("name", ["", "a\0b", "\udcff", "x" * 300, "a/" * 3000])
def test_a_name_that_cannot_be_written_down_is_refused(name):
    with pytest.raises(UserError, match="^--out: "):
        utf8_path(name, "--out")


def test_types_are_found_by_path():
    assert type_at(Outer, ("inner", 3, "steps")) is int
    assert literal_choices(type_at(Outer, ("named", "x", "kind"))) == ("sgd", "adam")
    assert type_at(Outer, ("inner", 3, "nothing")) is None


def test_anything_can_be_shown_on_a_line():
    assert printable("a\nb\x1b[31m\udcff") == "a?b?[31m\\udcff"
    assert len(shown("x" * 1000)) < 70
    assert shown(10**5000) == "a value too large to show"


def test_what_is_wrong_is_said_on_a_line_whatever_characters_are_in_it():
    class One(msgspec.Struct, tag="a\rb", tag_field="event"):
        pass

    class Other(msgspec.Struct, tag="other", tag_field="event"):
        pass

    with pytest.raises(UserError) as caught:
        decode_json(b'{"event":"  \\rt"}', One | Other, "a file", "delete it")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("typed", "number"),
    [(".9", 0.9), ("+0.1", 0.1), ("+.5e-1", 0.05), ("-.5", -0.5), ("5.", 5.0), ("+7", 7.0), ("1e3", 1000.0)],
)
def test_a_number_may_be_typed_as_people_write_one(typed, number):
    assert convert(typed, float, lambda _: "it", text=True) == number
    assert convert([typed, "1"], tuple[float, ...], lambda _: "it", text=True) == (number, 1.0)
    assert convert(typed, str, lambda _: "it", text=True) == typed
    assert convert("+3", int, lambda _: "it", text=True) == 3


@pytest.mark.parametrize("typed", [".", "+", "-", "+.", "e5", "++1", "1.2.3", "+ 1", "0x1", "", "+nan", "1_0", "٣"])
def test_what_is_no_number_is_refused_as_it_was_typed(typed):
    with pytest.raises(UserError) as caught:
        convert(typed, float, lambda _: "it", text=True)
    assert str(caught.value) == f"it must be a number, not {typed!r}"


def test_text_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "marked.toml"
    path.write_bytes(b'\xef\xbb\xbfworkload = "toy"\n')
    assert parse_toml(read_text(path, "a suite"), str(path)) == {"workload": "toy"}
