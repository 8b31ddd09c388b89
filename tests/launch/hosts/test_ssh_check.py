"""What is wrong with hosts, from what they say of themselves."""

import msgspec
import pytest
from ssh_hosts import GOOD

from istbench.launch.hosts.group import HostClock, choose_addresses, clock_of, problems_of

HERE = {"istbench": "1.2.0", "torch": "2.11.0", "Python": "3.11.7"}
SET = "set it, by NTP for instance"
ON_TIME = HostClock(ahead_s=0.2, within_s=0.1)


def changed(**fields):
    return msgspec.structs.replace(GOOD, **fields)


def found(second, clock=ON_TIME):
    other = msgspec.structs.replace(second, host="two", machine="2")
    return problems_of({"a": GOOD, "b": other}, {"a": ON_TIME, "b": clock}, HERE, "results")


def test_hosts_that_are_as_they_have_to_be_have_no_problems():
    assert found(changed(python="3.11.9")) == []


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (
            changed(istbench=None),
            "b: no istbench for /usr/bin/python3; --install installs istbench 1.2.0 there",
        ),
        (changed(istbench="1.1.0"), "b: it has istbench 1.1.0 (1.2.0 here); install the same on every host"),
        (changed(torch=None, python="3.12.1"), "b: it has torch none (2.11.0 here), Python 3.12.1 (3.11.7 here)"),
        (changed(missing=["data"]), "b: no data there (seen from /home/me)"),
        (changed(free_scratch=5 * 2**20), "b: only 5 MiB are free for temporary files there; free some"),
        (changed(free_scratch=None), "b: cannot write temporary files there"),
    ],
)
def test_what_is_wrong_names_the_host_and_the_way_out(second, said):
    (line,) = found(second)
    assert line.startswith(said)


def test_only_the_first_host_needs_room_for_results():
    assert found(changed(free=0)) == []
    (line,) = problems_of({"a": changed(free=0)}, {}, HERE, "my/results")
    assert line == "a: only 0 MiB are free for my/results there; free some, or choose another --out"


def test_one_machine_by_two_names_is_named():
    (line,) = problems_of({"a": GOOD, "b": GOOD}, {}, HERE, "results")
    assert line.startswith("b: it is the same machine as a (one); name it once")


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (
            HostClock(ahead_s=-3601, within_s=0.1),
            ["b: its clock is 60 min behind this host's; " + SET],
        ),
        (
            HostClock(ahead_s=86400, within_s=0.1),
            ["b: its clock is 24.0 h ahead of this host's; " + SET],
        ),
        (HostClock(ahead_s=31, within_s=2), []),
    ],
)
def test_a_clock_that_is_off_beyond_what_the_way_there_explains(clock, said):
    assert found(GOOD, clock) == said


def test_the_quickest_of_several_readings_tells_the_clock():
    clock = clock_of([(10.0, 70.0, 20.0), (30.0, 31.1, 30.2)])
    assert clock.ahead_s == pytest.approx(1.0)
    assert clock.within_s == pytest.approx(0.1)
    assert str(clock) == "+1.00 ± 0.10 s"


A, B = [("192.168.0.1", 4000, "token"), ("10.0.0.1", 4000, "token")], [("10.0.0.2", 5000, "other")]


def chosen(a_from_b=("", ""), a_from_c=("", ""), b_from_a="", b_from_c=""):
    """The addresses of hosts a and b, and lines of failures, from the reasons of hosts a, b and c."""
    reasons = {
        "a": {A[0]: "odd", A[1]: "odd", B[0]: b_from_a},
        "b": {**dict(zip(A, a_from_b, strict=True)), B[0]: "odd"},
        "c": {**dict(zip(A, a_from_c, strict=True)), B[0]: b_from_c},
    }
    return choose_addresses({"a": A, "b": B}, reasons)


def test_the_first_address_at_which_all_others_reach_a_host_is_chosen():
    assert chosen() == ({"a": "192.168.0.1", "b": "10.0.0.2"}, [])
    assert chosen(a_from_b=("timed out", "")) == ({"a": "10.0.0.1", "b": "10.0.0.2"}, [])


def test_who_reaches_a_host_at_no_address_is_named_by_direction():
    addresses, (first, second) = chosen(a_from_b=("timed out", "refused"), b_from_a="timed out")
    assert addresses == {}
    assert first.startswith(
        "b: does not reach a at 192.168.0.1, port 4000 (timed out), nor 10.0.0.1, port 4000 (refused); have"
    )
    assert second.startswith("a: does not reach b at 10.0.0.2, port 5000 (timed out); have the firewall")


def test_no_address_that_suits_all_is_said_of_the_host():
    addresses, (line,) = chosen(a_from_b=("timed out", ""), a_from_c=("", "timed out"))
    assert addresses == {"b": "10.0.0.2"}
    assert line.startswith("a: no address of it (192.168.0.1, 10.0.0.1) is reachable from all other hosts")
