"""Hosts as users name them."""

import pytest
from garbage import WORDS, one_line, quick
from hypothesis import example, given

from istbench.errors import UserError
from istbench.launch.hosts import Host, first_of, parse_hosts


def test_a_list_has_a_process_a_host():
    assert parse_hosts(" a, me@b.example.org,10.0.0.3, fe80::1%eth0,") == (
        Host("a"),
        Host("me@b.example.org"),
        Host("10.0.0.3"),
        Host("fe80::1%eth0"),
    )


def test_a_file_has_slots_and_comments(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\na slots=2\n\nb  # the old one\n")
    assert parse_hosts(str(path)) == (Host("a", 2), Host("b"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no host"),
        (",", "names no host"),
        ("a,b,a", "names a twice"),
        ("-oProxyCommand=x", "is no host's name"),
        ("a,me@-x", "is no host's name"),
        ("a b", "is no host's name"),
        ("a;b", "is no host's name"),
        ("a\nb", "is no host's name"),
        ("b*2", "is no host's name"),
        ("h" * 256, "is no host's name"),
        ("no/such/file", "no file no/such/file"),
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
        ("-b", "line 2, '-b' is no host's name"),
        ("a", "line 2, names a twice"),
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


@quick(100)
@given(word=WORDS)
@example(word="--")
@example(word="a,-b")
@example(word="a@-b")
def test_no_word_becomes_an_option_of_ssh(word):
    try:
        hosts = parse_hosts(word)
    except UserError as refused:
        one_line(refused)
        return
    for host in hosts:
        assert not host.name.startswith("-")
        assert "@-" not in host.name
        assert not set(host.name) & set(" \t\n'\"$`;&|<>(){}*?!\\")
