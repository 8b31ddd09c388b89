"""Whatever a profile's file holds, it is read, or refused in one line that names it."""

import dataclasses
import math
import os

import pytest
from garbage import VALUES, WORDS, as_toml, damaged, nested, one_line, quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import ClusterProfile, load_profile

PROFILE = {
    "summary": "two desks", "gflops": 100.0, "source": "measured", "memory_gib": 16.0, "bandwidth_out": "1gbit",
    "bandwidth_in": 1e9, "latency_s": 0, "message_s": 2e-5, "overhead_s": 1e-5, "full_duplex": True,
    "price_per_hour": 0.0, "price_date": "2024-12", "price_source": "none", "burst_bytes": 1e5, "cores": 4,
    "cpu_s_per_byte": 1e-9, "cpu_s_per_message": 1e-4, "memory_gb_per_s": 40.0, "gather_gb_per_s": 20.0,
    "core_gb_per_s": 15.0, "backend": "gloo", "window_bytes": 4e6, "slow_start": False, "burst_bandwidth": "10gbit",
    "in_turns": False, "speeds": [1.0, 0.5], "backplane": 3e9,
    "host": {"nodes": 4, "bandwidth": "200gbit", "latency_s": 5e-6}, "rack": {"hosts": 8, "uplink": "1gbit"},
}  # fmt: skip


def numbers(values):
    for value in values:
        if isinstance(value, tuple):
            yield from numbers(value)
        elif isinstance(value, float):
            yield value


def read(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "mine.toml"
    path.write_bytes(content)
    try:
        profile = load_profile(str(path))
    except UserError as error:
        refused = one_line(error)
    else:
        assert all(math.isfinite(number) for number in numbers(dataclasses.astuple(profile)))
        assert isinstance(profile.uniform, bool)
        assert len(profile.speeds_of(3)) == 3
        return profile
    assert "mine.toml" in refused
    return None


def test_the_profile_that_is_damaged_below_is_sound(tmp_path_factory):
    assert read(tmp_path_factory, as_toml(PROFILE).encode()).bandwidth_out == 1e9
    assert PROFILE.keys() | {"name"} == {field.name for field in dataclasses.fields(ClusterProfile)}


@quick(100)
@given(profile=damaged(PROFILE))
def test_a_damaged_profile(tmp_path_factory, profile):
    read(tmp_path_factory, as_toml(profile).encode())


@quick(150)
@given(name=st.sampled_from(sorted([*PROFILE, "base", "bandwidth", "latency"])), value=VALUES)
def test_any_value_for_any_field(tmp_path_factory, name, value):
    read(tmp_path_factory, as_toml({**PROFILE, name: value}).encode())


@quick(50)
@given(content=st.binary(max_size=100))
def test_bytes(tmp_path_factory, content):
    read(tmp_path_factory, content)


@pytest.mark.parametrize("value", ["true", "nan", "inf", "1e300", "9" * 400, "-1", "[1]", '"1" ', "1979-05-27"])
def test_no_number_that_is_none_for_any_number(tmp_path_factory, value):
    for name, sound in PROFILE.items():
        if isinstance(sound, int | float) and not isinstance(sound, bool):
            text = as_toml({key: part for key, part in PROFILE.items() if key != name})
            assert read(tmp_path_factory, f"{text}{name} = {value}\n".encode()) is None


def test_nesting_and_a_pipe(tmp_path_factory, tmp_path):
    assert read(tmp_path_factory, f"gflops = {nested('[', ']')}".encode()) is None
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(UserError, match="pipe.toml is a pipe, not a file; give a cluster profile"):
        load_profile(str(tmp_path / "pipe.toml"))


@quick(100)
@given(word=WORDS)
def test_a_bandwidth_is_above_zero_and_finite(word):
    try:
        bits = parse_bandwidth(word)
    except UserError as error:
        bits = len(one_line(error))
    assert 0 < bits <= 1e15
