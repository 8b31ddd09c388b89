"""Cluster profiles: the built-in ones, and what is wrong with a user's own."""

import dataclasses

import pytest

from istbench.base.errors import UserError
from istbench.cluster.clock import dollars
from istbench.cluster.profile import Rack, SharedHost, load_profile, names, parse_profile, summaries

SOUND = """\
# a cluster
summary = "Two desks"
gflops = 100
source = "a guess"
memory_gib = 16.0
bandwidth_out = "1gbit"
bandwidth_in = 0.5e9
latency_s = 0
overhead_s = 1e-5
full_duplex = true
price_per_hour = 0.5
price_date = 2024-12-01
price_source = "a friend"
"""


def parse(text):
    return parse_profile(text, name="mine", where="mine.toml")


def complaint(text):
    with pytest.raises(UserError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", names())
def test_built_in_profiles_are_sound_and_say_where_their_figures_come_from(name):
    profile = load_profile(name)
    assert profile.name == name
    assert len(profile.source) > 20
    assert len(profile.price_source) > 10
    assert profile.price_date[:2] == "20"
    assert profile.summary in summaries()[name]


def test_a_users_own_file(tmp_path):
    path = tmp_path / "two desks.toml"
    path.write_text(SOUND)
    profile = load_profile(str(path))
    assert (profile.name, profile.gflops, profile.price_date) == ("two desks", 100.0, "2024-12-01")
    assert (profile.bandwidth_out, profile.bandwidth_in) == (1e9, 0.5e9)
    wider = profile.with_bandwidth(3e9)
    assert (wider.bandwidth_out, wider.bandwidth_in, wider.gflops) == (3e9, 3e9, 100.0)


def test_the_library_of_collectives_follows_from_what_computes():
    assert [parse(SOUND + more).collectives for more in ("", "cores = 4\n", 'backend = "gloo"\n')] == [
        "nccl", "gloo", "gloo"
    ]  # fmt: skip
    assert {name: load_profile(name).collectives for name in names()} == {
        "home-100mbit": "gloo", "m5.2xlarge": "gloo", "office-1gbit": "gloo", "p3.2xlarge": "nccl",
        "p5.4xlarge": "nccl",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "line", "found"),
    [
        ("gflops = 100", "gflops = 0", 3, "gflops must be a number above 0, not 0"),
        ("gflops = 100", "gflops = -1", 3, "gflops must be a number above 0, not -1"),
        ("gflops = 100", "gflops = true", 3, "gflops must be a number, not True"),
        ("gflops = 100", "gflops = nan", 3, "gflops must be a number above 0, not nan"),
        ("gflops = 100", 'gflops = "fast"', 3, "gflops must be a number, not 'fast'"),
        ("gflops = 100", "glops = 100", 3, "glops: unknown name; did you mean 'gflops'?"),
        ("gflops = 100", "[zzz]\nqq = 1", 3, "zzz: unknown name. Known: backend, backplane, bandwidth, "),
        ("gflops = 100", "gflops = ", 3, "not TOML"),
        ("gflops = 100", "summary = 1", 3, "not TOML"),
        (
            "latency_s = 0",
            "latency_s = -1e-3",
            8,
            "latency_s must be seconds of at least 0 and at most 3600, or text",
        ),
        (
            '"1gbit"',
            '"1 furlong"',
            6,
            "bandwidth_out must be bits/s above 0: '1 furlong' is not a bandwidth; write",
        ),
        ('"1gbit"', "0", 6, "bandwidth_out must be bits/s above 0"),
        ("true", "1", 10, "full_duplex must be true or false, not 1"),
        ('"Two desks"', "2", 2, "summary must be text, not 2"),
        ("price_date", 'backend = "mpi"\nprice_date', 12, "backend"),
    ],
)
def test_mistakes_name_the_file_and_the_line(before, after, line, found):
    assert before in SOUND
    message = complaint(SOUND.replace(before, after, 1))
    assert message.startswith(f"mine.toml, line {line}: ")
    assert found in message


NETWORK = f"""{SOUND}speeds = [1, 0.5]
backplane = "3gbit"
burst_bandwidth = "10gbit"

[host]
nodes = 4
bandwidth = "200gbit"
latency_s = 5e-6

[rack]
hosts = 8
uplink = "2gbit"
"""


def test_a_file_of_hosts_and_racks():
    profile = parse(NETWORK)
    assert profile.host == SharedHost(nodes=4, bandwidth=2e11, latency_s=5e-6)
    assert profile.rack == Rack(hosts=8, uplink=2e9)
    assert (profile.speeds, profile.backplane, profile.burst_bandwidth) == ((1.0, 0.5), 3e9, 10e9)
    assert profile.speeds_of(3) == (1.0, 0.5, 1.0)
    other = profile.with_bandwidth(0.1e9)
    assert (other.host, other.rack, other.burst_bandwidth) == (profile.host, profile.rack, None)


@pytest.mark.parametrize(
    ("before", "after", "line", "found"),
    [
        ("speeds = [1, 0.5]", "speeds = [1, 0]", 14, "speeds[1] must be a number of at least 0.001, not 0"),
        ("speeds = [1, 0.5]", "speeds = 2", 14, "speeds must be a list, not 2"),
        ("nodes = 4", "nodes = 1", 19, "host.nodes must be a whole number of at least 2, not 1"),
        ("nodes = 4\n", "", 18, "host.nodes is missing"),
        ('bandwidth = "200gbit"', "bandwidth = 0", 20, "host.bandwidth must be bits/s above 0"),
        ("hosts = 8", "host = 8", 24, "rack.host: unknown name; did you mean 'hosts'?"),
        ('uplink = "2gbit"', 'uplink = "much"', 25, "rack.uplink must be bits/s above 0"),
        ('[rack]\nhosts = 8\nuplink = "2gbit"\n', "rack = 8", 23, "unknown name"),
    ],
)
def test_mistakes_in_hosts_and_racks_name_the_file_and_the_line(before, after, line, found):
    assert before in NETWORK
    message = complaint(NETWORK.replace(before, after, 1))
    assert message.startswith(f"mine.toml, line {line}: ")
    assert found in message


@pytest.mark.parametrize(
    ("changes", "uniform"),
    [
        ({}, True),
        ({"speeds": (0.5, 0.5)}, True),
        ({"speeds": (1.0, 0.5)}, False),
        ({"backplane": 1e12}, False),
        ({"host": SharedHost(nodes=2, bandwidth=1e11, latency_s=0.0)}, False),
        ({"rack": Rack(hosts=8, uplink=7.9e9)}, False),
        ({"rack": Rack(hosts=8, uplink=8e9)}, True),  # as much as its hosts can send
    ],
)
def test_equal_nodes_on_a_switch_that_is_no_bottleneck_are_uniform(changes, uniform):
    assert dataclasses.replace(parse(SOUND), **changes).uniform == uniform


SHORT = 'bandwidth = "1 Gbit/s"\nlatency = "20 ms"\ngflops = 100\n'


def test_three_lines_are_a_profile_and_the_rest_is_that_of_the_default_cluster_without_a_price():
    profile, base = parse(SHORT), load_profile("m5.2xlarge")
    assert (profile.bandwidth_out, profile.bandwidth_in, profile.latency_s, profile.gflops) == (
        1e9,
        1e9,
        0.02,
        100.0,
    )
    assert (profile.cores, profile.memory_gib, profile.overhead_s) == (base.cores, base.memory_gib, base.overhead_s)
    assert (profile.name, profile.burst_bandwidth, profile.source) == ("mine", None, "not given")
    assert not profile.priced
    assert dollars(profile, 4, 3600.0) is None


def test_a_base_gives_the_rest():
    assert parse(f'base = "p3.2xlarge"\n{SHORT}').collectives == "nccl"
    this = dataclasses.replace(load_profile("office-1gbit"), memory_gib=3.0)
    assert parse_profile(SHORT, name="mine", where="mine.toml", this=this).memory_gib == 3.0
    assert parse(f"{SHORT}price_per_hour = 2\nprice_source = 'a friend'\n").priced
    assert parse(f"{SHORT}price_per_hour = 2\n").priced
    assert "which the file lacks; give both" in complaint(f"{SHORT}price_source = 'a friend'\n")
    assert "unknown base 'p3.2xlarg'; did you mean 'p3.2xlarge'?" in complaint('base = "p3.2xlarg"')
    assert "the cluster `this` is for a file of `istbench record`" in complaint('base = "this"')


def test_a_file_names_its_times_and_links_as_people_type_them():
    profile = parse(SOUND.replace("latency_s = 0", 'latency_s = "5 ms"').replace('"1gbit"', '"1Gbps"'))
    assert (profile.latency_s, profile.bandwidth_out) == (0.005, 1e9)
    assert "mine.toml, line 1: bandwidth must be bits/s above 0: '1GB/s' is not a bandwidth in bits/s" in complaint(
        "bandwidth = '1GB/s'"
    )
    assert "line 2: latency must be seconds of at least 0: '20' has no unit" in complaint(
        'gflops = 1\nlatency = "20"'
    )


def test_an_empty_file_has_no_field():
    assert "mine.toml has no field; three lines are enough" in complaint("")


def test_names_and_files_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="unknown cluster 'm5.2xlarg'; did you mean 'm5.2xlarge'?"):
        load_profile("m5.2xlarg")
    with pytest.raises(UserError, match="no file .*absent.toml; give a cluster profile; built in are home-100mbit"):
        load_profile(str(tmp_path / "absent.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match="folder.toml is a directory, not a file"):
        load_profile(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="binary.toml is not UTF-8 text"):
        load_profile(str(tmp_path / "binary.toml"))
