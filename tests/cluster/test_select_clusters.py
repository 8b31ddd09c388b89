"""Choosing clusters and the bandwidths of their links."""

import pytest

from istbench.base.errors import UserError
from istbench.cluster.profile import bandwidth_text, load_profile, select_clusters


@pytest.mark.parametrize(
    ("bits", "digits", "text"),
    [
        (1e8, 6, "100 Mbit/s"), (2.375e9, 6, "2.375 Gbit/s"), (2.3137e9, 3, "2.31 Gbit/s"), (8e2, 6, "800 bit/s"),
        (999.96e6, 3, "1 Gbit/s"), (4e12, 6, "4 Tbit/s"), (64e3, 6, "64 kbit/s"),
    ],
)  # fmt: skip
def test_bandwidths_in_words(bits, digits, text):
    assert bandwidth_text(bits, digits) == text


def test_without_bandwidths_a_cluster_is_as_it_is():
    assert select_clusters(["p3.2xlarge", "p3.2xlarge"]) == {"p3.2xlarge": [load_profile("p3.2xlarge")]}


def test_every_bandwidth_is_a_profile_named_after_it_rising():
    found = select_clusters(["m5.2xlarge", "office-1gbit"], [1e9, 1e8, 1e9])
    assert [profile.name for profile in found["m5.2xlarge"]] == [
        "m5.2xlarge at 100 Mbit/s",
        "m5.2xlarge at 1 Gbit/s",
    ]
    assert [profile.bandwidth_in for profile in found["office-1gbit"]] == [1e8, 1e9]


def test_every_latency_is_a_cluster_named_after_it():
    found = select_clusters(["m5.2xlarge"], [1e9, 1e8], [0.03, 0.001, 0.03])
    assert list(found) == ["m5.2xlarge with 1 ms", "m5.2xlarge with 30 ms"]
    assert [profile.name for profile in found["m5.2xlarge with 30 ms"]] == [
        "m5.2xlarge with 30 ms at 100 Mbit/s",
        "m5.2xlarge with 30 ms at 1 Gbit/s",
    ]
    assert {profile.latency_s for profile in found["m5.2xlarge with 1 ms"]} == {0.001}
    (alone,) = select_clusters(["m5.2xlarge"], [], [0.5e-3])["m5.2xlarge with 0.5 ms"]
    assert alone.bandwidth_out == load_profile("m5.2xlarge").bandwidth_out


def test_two_files_of_one_name_are_refused(tmp_path):
    text = "\n".join(
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for name, value in vars(load_profile("m5.2xlarge")).items()
        if name != "name" and value not in (None, ())
    )
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").write_text(text)
    assert list(select_clusters([str(tmp_path / "a" / "mine.toml")])) == ["mine"]
    with pytest.raises(UserError, match="two clusters are called 'mine'"):
        select_clusters([str(tmp_path / folder / "mine.toml") for folder in ("a", "b")])
