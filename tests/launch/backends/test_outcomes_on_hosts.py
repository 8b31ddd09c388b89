"""Outcomes of cells over hosts that an earlier command left to the first host; no host is reached."""

from types import SimpleNamespace

import pytest
from fake_runs import header

from istbench.base.errors import RunFailed
from istbench.base.options.run import RunRequest
from istbench.launch.backends.hosts import Hosts
from istbench.launch.hosts import detached, finished_cells
from istbench.launch.hosts import restarts as ssh_restarts
from istbench.launch.hosts.group import Unfit
from istbench.launch.hosts.names import Host
from istbench.results.store import RunDirectory

REQUEST = RunRequest(workload="toy", method="ist")
SCREEN = SimpleNamespace(note=print)


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """The outcome of a cell whose following is `follow`; `trained` gets the cells that train anew."""

    def found(follow, *, stop=False):
        trained = []

        def train(run, *_):
            trained.append(run.request)
            return RunDirectory.of(tmp_path, "cell")

        monkeypatch.setattr(detached, "follow", follow)
        monkeypatch.setattr(detached, "stop", lambda runs: None)
        monkeypatch.setattr(finished_cells, "finished", lambda runs, _say: [None])
        monkeypatch.setattr(ssh_restarts, "run_on_hosts", train)
        (ended,) = Hosts(hosts=(Host("a"),), stop=stop).run([REQUEST], tmp_path, False, SCREEN)
        return ended, trained

    return found


def test_a_followed_cell_that_failed_has_its_run(outcome, tmp_path):
    run = RunDirectory.of(tmp_path, "cell")
    run.create(header("ist", status="failed", error="the loss is nan"))

    def follow(*_, started, **__):
        started("cell")
        raise RunFailed("the loss is nan")

    ended, trained = outcome(follow)
    assert (str(ended.failure), ended.run.path, trained) == ("the loss is nan", run.path, [])


def test_a_cell_that_nobody_trains_is_trained_but_not_to_stop_it(outcome):
    def follow(*_, **__):
        return None

    ended, trained = outcome(follow)
    assert (ended.failure, trained) == (None, [REQUEST])
    ended, trained = outcome(follow, stop=True)
    assert (str(ended.failure), trained) == (
        "nothing of it runs detached on a; the same command without --stop trains it",
        [],
    )


def test_a_host_that_is_gone_after_a_cell_is_a_loss_for_the_next_and_no_loss_before_the_first(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(detached, "follow", lambda *_, **__: None)
    monkeypatch.setattr(finished_cells, "finished", lambda runs, _say: [None] * len(runs))
    gone, unfit = Unfit(["a: ssh does not reach it"], ["a"]), Unfit(["a: has no torch"])
    endings = {0: gone, 1: None, 2: gone, 3: unfit}

    def train(run, *_):
        if (ending := endings[run.request.seed]) is not None:
            raise ending
        return RunDirectory.of(tmp_path, "cell")

    monkeypatch.setattr(ssh_restarts, "run_on_hosts", train)
    cells = [RunRequest(workload="toy", method="ist", nodes=1, seed=seed) for seed in endings]
    outcomes = list(Hosts(hosts=(Host("a"),)).run(cells, tmp_path, False, SCREEN))
    assert [outcome.lost for outcome in outcomes] == [False, False, True, False]
    assert [outcome.failure is None for outcome in outcomes] == [False, True, False, False]
    assert str(outcomes[2].failure) == "a: ssh does not reach it"
