"""Outcomes of cells over hosts that an earlier command left to the first host; no host is reached."""

import pytest
from fake_runs import header

from istbench.base.errors import RunFailed
from istbench.base.options.run import RunRequest
from istbench.launch.backends.hosts import Hosts
from istbench.launch.hosts import detached
from istbench.launch.hosts import restarts as ssh_restarts
from istbench.launch.hosts.names import Host
from istbench.results.store import RunDirectory

REQUEST = RunRequest(workload="toy", method="ist")


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """The outcome of a cell whose following is `follow`; `trained` gets the cells that train anew."""

    def found(follow, *, stop=False):
        trained = []

        def train(run, *_):
            trained.append(run.request)
            return RunDirectory.of(tmp_path, "cell")

        monkeypatch.setattr(detached, "follow", follow)
        monkeypatch.setattr(ssh_restarts, "run_on_hosts", train)
        hosts = Hosts(hosts=(Host("a"),), stop=stop)
        return hosts._trained(hosts._cell(REQUEST, tmp_path, False), print), trained

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
