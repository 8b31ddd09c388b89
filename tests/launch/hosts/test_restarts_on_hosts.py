"""Runs on hosts that start again, on spare hosts where some are gone; no host is reached."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.backends.choose import choose
from istbench.launch.hosts import detached, finished_cells, group, install, restarts
from istbench.launch.hosts.connection import Connection, Lost
from istbench.launch.hosts.group import Unfit, Unlinked, gather
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.restarts import run_with_restarts, with_spares
from istbench.launch.hosts.run import HostsRun, RunLost, trained_until
from istbench.launch.processes.failures import WorkerLost, cause_in
from istbench.results.events import Loss, Return
from istbench.results.store import RunDirectory

A, B, C, D, E = map(Host, "abcde")
LOSS = Loss(cause="b: gone", noticed=1.0, noticing_s=2.0, redone_steps=3, redone_s=4.0)


@pytest.mark.parametrize(
    ("hosts", "gone", "spares", "found"),
    [
        ([A, B], [], [D], None),
        ([A, B], ["x"], [D], None),
        ([A, B], ["b"], [], None),
        ([A, B], ["b"], [D, E], ((A, D), (E,))),
        ([A, B], ["a"], [D], ((D, B), ())),
        ([A, B], ["a", "b"], [D, E], ((D, E), ())),
        ([A, B], ["a", "b"], [D], None),
        ([A, B], ["b", "d"], [D, E], ((A, E), ())),
        ([A, Host("b", 2)], ["b"], [D, Host("e", 4)], ((A, Host("e", 2)), (D,))),
        ([A, Host("b", 2)], ["b"], [D], None),
    ],
)
def test_a_spare_with_enough_slots_takes_the_place_of_a_host_that_is_gone(hosts, gone, spares, found):
    assert with_spares(hosts, gone, spares) == found


def lost(step, *, began=True):
    failure = RunLost("b: gone; the same command goes on from step 4, on these hosts or others")
    failure.step, failure.loss, failure.began = step, LOSS, began
    return failure


@pytest.fixture
def tried(monkeypatch):
    """Tries runs that end as scripted; returns each run tried, and what was said."""
    clock = [0.0]
    fake = SimpleNamespace(
        time=lambda: 1.0, monotonic=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + seconds)
    )
    monkeypatch.setattr(restarts, "time", fake)

    def run(*outcomes, again=False, **changed):
        tries, said, left = [], [], iter(outcomes)

        def run_on_hosts(one, _say, _started, reason):
            tries.append(one)
            run.reasons[len(tries) - 1 :] = [reason]
            if (outcome := next(left)) is not None:
                raise outcome
            return "the run"

        monkeypatch.setattr(restarts, "run_on_hosts", run_on_hosts)
        given = {"request": RunRequest(workload="toy", method="ist"), "hosts": (A, B), **changed}
        asked = HostsRun(out=Path("out"), again=again, **given)
        try:
            ended = run_with_restarts(asked, said.append)
        except (RunFailed, Unfit) as error:
            ended = error
        return tries, said, ended

    run.reasons = []
    return run


def test_a_lost_run_starts_again_with_its_loss_and_without_again(tried):
    tries, said, ended = tried(lost(9), None, restarts=1, again=True)
    assert ended == "the run"
    assert ([one.again for one in tries], tried.reasons) == ([True, False], [None, LOSS])
    assert said == ["b: gone; the run starts again from its last checkpoint"]
    tries, _, _ = tried(lost(0, began=False), None, restarts=1, again=True)
    assert [one.again for one in tries] == [True, True]  # nothing of the earlier results was deleted yet


@pytest.mark.parametrize(
    ("allowed", "steps", "count", "reason"),
    [
        (0, [9], 1, "on these hosts or others"),
        (1, [9, 12], 2, "it was restarted once, as --restarts allows"),
        (9, [9, 9, 9], 3, "this is loss 3 in a row at step 9, so --restarts tries no more"),
    ],
)
def test_a_run_that_is_lost_too_often_fails(tried, allowed, steps, count, reason):
    tries, _, ended = tried(*map(lost, steps), None, restarts=allowed)
    assert len(tries) == count
    assert isinstance(ended, WorkerLost)
    assert str(ended).endswith(reason)


def test_other_failures_are_not_tried_again(tried):
    tries, _, ended = tried(RunFailed("the loss became nan at step 7"), None, restarts=9)
    assert (len(tries), str(ended)) == (1, "the loss became nan at step 7")


def test_spares_take_the_place_of_hosts_that_cannot_be_reached_at_first_and_after_a_loss(tried):
    unreached = Unfit(["b: ssh does not reach it"], ["b"])
    tries, said, _ = tried(unreached, None, spares=(D, E))
    assert [one.hosts for one in tries] == [(A, B), (A, D)]
    assert said == ["b cannot be reached: d takes its place"]
    tries, said, _ = tried(lost(5), unreached, Unfit(["d: no"], ["d"]), None, spares=(D, E), restarts=1)
    assert [one.hosts for one in tries] == [(A, B), (A, B), (A, D), (A, E)]
    assert tried.reasons[-1] == LOSS


def test_a_host_that_is_gone_without_a_spare_ends_the_run_or_may_come_back(tried):
    unreached = Unfit(["b: ssh does not reach it"], ["b"])
    tries, _, ended = tried(unreached, None, restarts=9)
    assert (len(tries), ended) == (1, unreached)  # a wrong name, before anything ran
    tries, said, ended = tried(lost(5), *[unreached] * 50, None, restarts=1)
    assert (len(tries), ended) == (52, "the run")
    assert said[1:] == ["b: ssh does not reach it; waiting up to 10 min for it"]
    tries, _, ended = tried(lost(5), *[unreached] * 99, restarts=9)
    assert (len(tries), ended) == (62, unreached)  # the loss, and a try every ten seconds
    tries, _, ended = tried(lost(5), Unfit(["b: has no torch"]), None, restarts=9)
    assert len(tries) == 2


def test_an_elastic_run_goes_on_with_the_hosts_that_are_left_and_with_those_that_are_back(tried):
    request = RunRequest(workload="toy", method="ist", nodes=4, elastic="2:4")
    hosts, gone, stopped = (A, B, C, D), Unfit(["b: ssh does not reach it"], ["b"]), lost(20)
    stopped.back = (B,)
    tries, said, ended = tried(lost(5), gone, stopped, None, restarts=1, request=request, hosts=hosts)
    assert ended == "the run"
    assert [one.hosts for one in tries] == [hosts, hosts, [A, C, D], (A, C, D, B)]
    assert [list(one.away) for one in tries] == [[], [], [B], []]
    assert tried.reasons == [None, LOSS, LOSS, Return(cause="b can be reached again", noticed=1.0)]
    assert said[-2:] == [
        "b cannot be reached: the run goes on with 3 nodes", "b can be reached again: the run goes on with 4 nodes",
    ]  # fmt: skip
    assert "--nodes=4" in tries[2].words({}, None)
    assert "--elastic=2:4" in tries[2].words({}, None)


def test_an_elastic_run_takes_a_spare_first_and_keeps_its_least_number_of_nodes(tried):
    request = RunRequest(workload="toy", method="ist", nodes=3, elastic="2:3")
    asked = {"request": request, "hosts": (A, B, C), "restarts": 9}
    gone = Unfit(["b: ssh does not reach it"], ["b"])
    tries, _, _ = tried(lost(5), gone, None, spares=(D,), **asked)
    assert [one.hosts for one in tries][-1] == (A, D, C)
    few = Unfit(["a: no", "b: no"], ["a", "b"])
    tries, said, ended = tried(lost(5), few, None, **asked)
    assert (tries[-1].hosts, said[-1], ended) == ((A, B, C), "a: no; waiting up to 10 min for it", "the run")
    tries, _, ended = tried(gone, None, **asked)
    assert (len(tries), ended) == (1, gone)  # a wrong name, before anything ran


class Answering:
    """A connection to a host that calls all others from `own`; without it, it reaches none of them."""

    def __init__(self, name, own=""):
        self.name, self._own = name, own

    def ask(self, do, **arguments):
        return do, arguments

    def answer(self, asked, _timeout_s):
        return self.do(asked[0], **asked[1])

    def do(self, do, **arguments):
        if do != "try_connections":
            return 4000
        return [[self._own, "" if self._own else "timed out"] for _ in arguments["places"]]


def test_hosts_that_answer_but_do_not_reach_one_another_are_unlinked(monkeypatch):
    facts = {name: SimpleNamespace(addresses=["10.0.0.1"]) for name in "ab"}
    monkeypatch.setattr(group, "survey", lambda *_, **__: (facts, {}))
    with pytest.raises(Unlinked, match=r"^b: does not reach a at 10.0.0.1, port 4000 \(timed out\)"):
        gather([Answering("a"), Answering("b")], Path("out"))


def test_the_address_of_a_host_is_the_one_from_which_its_workers_call_the_first(monkeypatch):
    facts = {name: SimpleNamespace(addresses=[f"192.168.0.{name}", f"10.0.0.{name}"]) for name in "12"}
    monkeypatch.setattr(group, "survey", lambda *_, **__: (facts, {}))
    found = gather([Answering("1", "10.0.0.1"), Answering("2", "10.0.0.2")], Path("out"))
    assert found.addresses == {"1": "192.168.0.1", "2": "10.0.0.2"}


def test_a_host_that_answers_before_its_disks_are_there_is_waited_for_too(tried):
    tries, _, ended = tried(
        lost(5), Unfit(["b: ssh does not reach it"], ["b"]), Unfit(["b: no out there"]), None, restarts=1
    )
    assert (len(tries), ended) == (4, "the run")


def test_a_host_that_is_away_twice_is_waited_for_twice(tried):
    unreached = Unfit(["b: ssh does not reach it"], ["b"])
    away = [unreached] * 50
    tries, said, ended = tried(lost(5), *away, lost(9), *away, None, restarts=2)
    assert (len(tries), len(said), ended) == (103, 4, "the run")


def test_a_link_that_fails_ends_a_new_run_and_is_waited_for_after_a_loss(tried):
    unlinked = Unlinked(["a cannot reach b"])
    tries, _, ended = tried(unlinked, None, restarts=9)
    assert (len(tries), ended) == (1, unlinked)
    tries, said, ended = tried(lost(5), unlinked, None, restarts=1)
    assert (len(tries), ended) == (3, "the run")
    assert said[-1] == "a cannot reach b; waiting up to 10 min for it"


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([], (0, 0.0)),
        ([(10.0, 40)], (40, 0.0)),
        ([(10.0, 40), (20.0, 60)], (80, 0.5)),
        ([(0.0, 1), (10.0, 40), (20.0, 60)], (80, 0.5)),
        ([(10.0, 60), (20.0, 60)], (60, 0.0)),  # it evaluated meanwhile
        ([(30.0, 40), (40.0, 60)], (60, 0.5)),  # reported after the last message of the lost host
    ],
)
def test_steps_of_a_lost_host_go_on_at_their_pace_until_its_last_message(reports, found):
    assert trained_until(reports, 30.0) == found


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("b: gone; the same command goes on from step 4", "b: gone"),
        ("b: gone; no checkpoint has been copied here yet: the same command starts anew", "b: gone"),
        ("b: gone; run the same command again, on these hosts or others", "b: gone"),
        ("b: gone (it was stopped; or killed)", "b: gone (it was stopped; or killed)"),
    ],
)
def test_the_cause_of_a_loss_leaves_the_way_out(what, cause):
    assert cause_in(what) == cause


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"spare": "d"}, "--spare is for the hosts of --hosts; give --hosts as well, or leave --spare out"),
        (
            {"hosts": "a,b", "spare": "d,b"},
            "--spare names b, which is in --hosts; name another, or leave it out",
        ),
        ({"hosts": "a,b", "spare": ","}, "--spare names no host; give names between commas, or a file of hosts"),
        ({"hosts": "a,b", "spare": "d,d"}, "--spare names d twice"),
        (
            {"hosts": "a,b", "spare": "d", "detach": True},
            "--spare is for cells that this machine watches; leave out --spare, or --detach",
        ),
    ],
)
def test_wrong_spares_are_refused(given, message):
    with pytest.raises(UserError) as refused:
        choose(given)
    assert str(refused.value).startswith(message)


def test_spares_and_restarts_reach_each_cell(tmp_path, monkeypatch):
    cells = []
    monkeypatch.setattr(finished_cells, "finished", lambda runs, _say: [None] * len(runs))
    monkeypatch.setattr(detached, "follow", lambda *_, **__: None)
    monkeypatch.setattr(
        restarts, "run_with_restarts", lambda run, *_: cells.append(run) or RunDirectory.of(tmp_path, "cell")
    )
    backend = choose({"hosts": "a,b", "spare": "d,e"}).restarting(3, typed=True)
    request = RunRequest(workload="toy", method="ist", nodes=2)
    list(backend.run([request], tmp_path, False, SimpleNamespace(note=print)))
    (cell,) = cells
    assert (cell.hosts, cell.spares, cell.restarts) == ((A, B), (D, E), 3)


def test_install_leaves_out_hosts_that_cannot_be_reached_if_there_are_spares(monkeypatch):
    def greet(connection):
        if connection.name in "bd":
            raise Lost("ssh does not reach it")

    def connected(hosts, *_):
        return nullcontext(([Answering(host.name) for host in hosts], None))

    asked = []

    def ask_each(hosts, *_):
        asked.extend(host.name for host in hosts)
        return dict.fromkeys(asked, install.source_key()), []

    monkeypatch.setattr(Connection, "greet", greet)
    monkeypatch.setattr(install, "connected", connected)
    monkeypatch.setattr(install, "ask_each", ask_each)
    choose({"hosts": "a,b", "spare": "d,e", "install": True}).installed(print)
    assert asked == ["a", "e"]
    with pytest.raises(UserError, match="^b: ssh does not reach it$"):
        choose({"hosts": "a,b", "install": True}).installed(print)
