"""Cluster profiles: the built-in ones are whole, and a user's mistakes are named by file and line."""

import pytest

from istbench.cluster.profile import bandwidth_text, load_profile, names, parse_bandwidth
from istbench.errors import UserError

GOOD = """summary = "mine"
gflops = 100.0
source = "measured"
memory_gib = 8
bandwidth_out = "1gbit"
bandwidth_in = 5e8
latency_s = 0.001
overhead_s = 0
full_duplex = true
price_per_hour = 0.5
price_date = 2026-01-01
price_source = "invoice"
"""


def test_built_in_profiles_are_whole():
    assert {"m5.2xlarge", "p3.2xlarge", "office-1gbit", "home-100mbit"} <= set(names())
    for name in names():
        profile = load_profile(name)
        assert profile.source
        assert profile.price_date
        assert profile.price_source


def test_a_users_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    profile = load_profile(str(path))
    assert (profile.name, profile.bandwidth_out, profile.bandwidth_in) == ("mine", 1e9, 5e8)
    assert profile.price_date == "2026-01-01"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gflops = 100.0", "gflops = -1", "line 2: gflops is -1; it must be above 0"),
        ("latency_s = 0.001", "latency_s = -0.1", "line 7: latency_s is -0.1; it must not be negative"),
        ("overhead_s", "overheads", "line 8: unknown field 'overheads'; did you mean 'overhead_s'"),
        ("gflops = 100.0\n", "", "ends without 'gflops'"),
        ('"1gbit"', '"fast"', "line 5: bandwidth_out: 'fast' is not a bandwidth"),
        ("true", '"yes"', "line 9: full_duplex is 'yes'; it must be true or false"),
        ("= 8", "= [", "line .*: not TOML"),
        ("100.0", "nan", "line 2: gflops is nan; it must be a number"),
    ],
)
def test_a_wrong_profile_names_file_and_line(tmp_path, old, new, message):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        load_profile(str(path))
    assert str(path) in str(caught.value)


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match=r"did you mean 'm5\.2xlarge'"):
        load_profile("m5.2xlage")
    with pytest.raises(UserError, match="no cluster profile"):
        load_profile(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("text", "bits"), [("100mbit", 1e8), ("2.5 Gbit", 2.5e9), ("800kbit", 8e5), (".5gbit", 5e8), ("1bit", 1.0)]
)
def test_bandwidths(text, bits):
    assert parse_bandwidth(text) == bits


@pytest.mark.parametrize("text", ["", "fast", "100", "-1gbit", "0mbit", "1gbyte", "nangbit", "1 gbit/s"])
def test_what_is_no_bandwidth(text):
    with pytest.raises(UserError, match="is not a bandwidth"):
        parse_bandwidth(text)


def test_bandwidths_for_readers():
    assert [bandwidth_text(bits) for bits in (1e8, 2.375e9, 5e5)] == ["100 Mbit/s", "2.375 Gbit/s", "500 kbit/s"]
