"""The report of `doctor --hosts` on hosts that are stand-ins."""

from contextlib import contextmanager

import msgspec
import pytest
import ssh_hosts

from istbench.cli import EXIT_FAILED, doctor_hosts
from istbench.cluster.profile import MessageCosts, parse_profile
from istbench.launch.hosts.connection import Refused
from istbench.launch.hosts.group import HostClock, HostGroup
from istbench.launch.hosts.links import HostLink, rates_of
from istbench.launch.hosts.names import Host

COSTS = MessageCosts(message_s=9e-5, next_s=5e-5, cpu_s_per_message=3e-5, cpu_s_per_byte=5e-10)
LINKS = [HostLink(source=a, target=b, bandwidth=1e9, latency_s=1e-4) for a, b in ("ab", "ba")]
NODE = {"gflops": 30.0, "memory_gb_per_s": 10.0, "memory": 2**34, "cores": 4.0}
SPEED = {"speed": [NODE], "carrying": [msgspec.to_builtins(COSTS)]}


class StandIn:
    """A host with two GPUs that gives one of `answers` to each request, or refuses."""

    def __init__(self, name, answers, slots=1):
        self.name, self.host, self._answers = name, Host(name, slots), answers

    def ask(self, do, words, **arguments):
        assert do == "run_programs"
        return words[0]

    def answer(self, asked, timeout_s):
        if isinstance(found := self._answers[asked], Exception):
            raise found
        return found


@pytest.fixture
def examine(monkeypatch, capsys):
    """Examine hosts a and b with these answers; returns the status and the findings."""

    def run(profile=None, **answers):
        hosts = [StandIn(name, {**SPEED, **answers}) for name in "ab"]
        facts = {name: msgspec.structs.replace(ssh_hosts.GOOD, gpus=2) for name in "ab"}
        clocks = dict.fromkeys("ab", HostClock(ahead_s=0.0, within_s=0.1))
        group = HostGroup(facts=facts, clocks=clocks, addresses=dict.fromkeys("ab", "10.0.0.1"), port=77)
        monkeypatch.setattr(doctor_hosts, "connected", contextmanager(lambda *_: iter([(hosts, None)])))
        monkeypatch.setattr(doctor_hosts, "gather", lambda *_, **__: group)
        monkeypatch.setattr(doctor_hosts, "measure_links", lambda *_: LINKS)
        monkeypatch.setattr(doctor_hosts, "measure_together", lambda *_: rates_of(LINKS))
        status = doctor_hosts.examine([host.host for host in hosts], None, None, profile)
        return status, capsys.readouterr().out.splitlines()

    return run


def test_a_failed_all_reduce_is_one_finding_and_the_profile_is_written(examine, tmp_path):
    late = Refused("no result within 120 s")
    status, lines = examine(tmp_path / "own.toml", gpus=[{"count": 0, "broken": ""}], all_reduce=late)
    assert status == EXIT_FAILED
    broken = [line.split(maxsplit=2) for line in lines if line.startswith("broken")]
    assert broken == [["broken", "all-reduce", "a: no result within 120 s; b: no result within 120 s"]]
    assert parse_profile((tmp_path / "own.toml").read_text(), name="own", where="own.toml").bandwidth_out == 1e9


def test_a_finding_has_no_escape_sequence_of_a_host(examine):
    status, lines = examine(gpus=[{"count": 2, "broken": "\x1b[2Jzeros\nok"}])
    assert status == EXIT_FAILED
    assert [line.split(maxsplit=2)[1:] for line in lines if line.startswith("broken")] == [
        [name, "?[2Jzeros?ok"] for name in "ab"
    ]


def test_a_profile_needs_the_speed_of_every_process(examine, tmp_path):
    status, lines = examine(tmp_path / "own.toml", speed=[], gpus=[{"count": 0, "broken": ""}], all_reduce=[])
    assert (status, list(tmp_path.iterdir())) == (EXIT_FAILED, [])
    line = "its computing speed is unknown: it measured too few processes"
    assert [found.split(maxsplit=2)[2] for found in lines if found.startswith("broken")][-2:] == [line] * 2


def test_a_profile_is_of_the_slowest_process_and_the_share_of_a_link():
    first = StandIn(
        "a", {**SPEED, "speed": [{**NODE, "gflops": 120.0}, {**NODE, "gflops": 130.0, "memory": 2**33}]}, 2
    )
    second = StandIn("b", {"speed": [{**NODE, "gflops": 160.0, "cores": 8.0}]})
    text = doctor_hosts.profile_of([first, second], LINKS, rates_of(LINKS))
    profile = parse_profile(text, name="own", where="own.toml")
    assert (profile.gflops, profile.cores, profile.memory_gib) == (120.0, 4.0, 8.0)
    assert (profile.bandwidth_out, profile.overhead_s) == (0.5e9, 5e-5)
