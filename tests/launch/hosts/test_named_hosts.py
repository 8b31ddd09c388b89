"""Hosts as users name them."""

import pytest
from garbage import WORDS, one_line, quick
from hypothesis import example, given
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.launch.hosts.names import Host, first_of, parse_hosts


def test_a_list_has_a_process_a_host():
    assert parse_hosts(" a, me@b.example.org,10.0.0.3, fe80::1%eth0,") == (
        Host("a"),
        Host("me@b.example.org"),
        Host("10.0.0.3"),
        Host("fe80::1%eth0"),
    )


@pytest.mark.parametrize(
    ("name", "destination", "port"),
    [
        ("a", "a", None),
        ("a:1", "a", "1"),
        ("me@b.example.org:65535", "me@b.example.org", "65535"),
        ("10.0.0.3:2222", "10.0.0.3", "2222"),
        ("fe80::1%eth0", "fe80::1%eth0", None),
        ("[fe80::1%eth0]", "fe80::1%eth0", None),
        ("me@[::1]:22", "me@::1", "22"),
    ],
)
def test_a_port_is_apart_from_what_ssh_calls_the_host(name, destination, port):
    (host,) = parse_hosts(name)
    assert (host.name, host.destination, host.port) == (name, destination, port)


def test_one_name_with_two_ports_is_two_hosts():
    assert parse_hosts("a,a:22,a:2222") == (Host("a"), Host("a:22"), Host("a:2222"))


def test_a_file_has_slots_and_comments(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\na slots=2\n\nb  # the old one\nme@[::1]:22 slots=3\n")
    assert parse_hosts(str(path)) == (Host("a", 2), Host("b"), Host("me@[::1]:22", 3))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no host"),
        (",", "names no host"),
        ("a,b,a", "names a twice"),
        ("-oProxyCommand=x", "is no name of a host"),
        ("a,me@-x", "is no name of a host"),
        ("a b", "is no name of a host"),
        ("a;b", "is no name of a host"),
        ("a\nb", "is no name of a host"),
        ("b*2", "is no name of a host"),
        ("h" * 256, "is no name of a host"),
        ("no/such/file", "no file no/such/file"),
        ("a:", "'a:' has an impossible port; give 1 to 65535"),
        ("a:0", "has an impossible port"),
        ("a:65536", "has an impossible port"),
        ("a:022", "has an impossible port"),
        ("[::1]:", "has an impossible port"),
        (f"a:{'9' * 200}", "has an impossible port"),
        ("a,a:22,a:22", "names a:22 twice"),
        (":22", "is no name of a host"),
        ("a:b", "is no name of a host"),
        ("a:-1", "is no name of a host"),
        ("a:22:23", "is no name of a host"),
        ("a:٣", "is no name of a host"),
        ("[a]:22", "is no name of a host"),
        ("[::1]22", "is no name of a host"),
        ("[::1%-oX=y z]:22", "is no name of a host"),
        ("[::1", "is no name of a host"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(text, problem):
    with pytest.raises(UserError, match=problem):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("b slots=0", "line 2, is 'b slots=0'"),
        ("b slots=-1", "line 2, is"),
        ("b slots=257", "line 2, is"),
        ("b 2", "line 2, is"),
        ("b slots=2 x", "line 2, is"),
        ("-b", "line 2, '-b' is no name of a host"),
        ("a", "line 2, names a twice"),
        ("b:0 slots=2", "line 2, 'b:0' has an impossible port"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(tmp_path, line, problem):
    path = tmp_path / "hosts"
    path.write_text(f"a\n{line}\n")
    with pytest.raises(UserError, match=problem):
        parse_hosts(str(path))


def test_the_first_hosts_have_as_many_nodes_as_a_cell():
    hosts = (Host("a", 2), Host("b"), Host("c", 3))
    assert first_of(hosts, 1) == (Host("a", 1),)
    assert first_of(hosts, 4) == (Host("a", 2), Host("b"), Host("c", 1))
    assert first_of(hosts, 6) == hosts
    with pytest.raises(UserError, match="--hosts has 6 processes for 7 nodes"):
        first_of(hosts, 7)


_PARTS = st.sampled_from(
    ["a", "me@", "-", ":", "[", "]", "::", "::1", "%", "fe80", "0", "22", "65535", "65536", ".", "@"]
)
_LIKE_HOSTS = st.lists(_PARTS, max_size=7).map("".join)


@quick(400)
@given(word=WORDS | _LIKE_HOSTS)
@example(word="--")
@example(word="a,-b")
@example(word="a@-b")
@example(word="[-b]:22")
@example(word="a:-b")
def test_no_word_becomes_an_option_of_ssh(word):
    try:
        hosts = parse_hosts(word)
    except UserError as refused:
        one_line(refused)
        return
    for host in hosts:
        assert not host.destination.startswith("-")
        assert "@-" not in host.destination
        assert not set(host.name) & set(" \t\n'\"$`;&|<>(){}*?!\\")
        assert not set(host.destination) & set("[]")
        assert host.port is None or 1 <= int(host.port) <= 65535
