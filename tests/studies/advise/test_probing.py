"""What the probes of a question keep: candidates whose seeds diverged, and data that changed since step one."""

import time
from types import SimpleNamespace

import pytest

from istbench.base.errors import UserError
from istbench.studies.advise import probe
from istbench.studies.advise.journal import Journal
from istbench.studies.advise.probe import _Probing


@pytest.fixture
def probing(tmp_path):
    """Probes of which seed 0 of `a` has trained 100 steps, on the data `old`."""
    journal = Journal.of(tmp_path, 1)
    screen = SimpleNamespace(note=print, preparing=print, training=print)
    question = SimpleNamespace(base=probe.RunRequest(workload="toy", method="ddp", nodes=2))
    backend = SimpleNamespace(run=lambda *_: pytest.fail("it trains"))
    now = time.monotonic()
    found = _Probing(question, backend, tmp_path, screen, journal, 60.0, started=now, until=now + 60)
    found._runs = {"a": {(100, 0): "run"}}
    found._data = "old"
    return found


def test_step_one_sends_every_gradient_as_it_is(probing):
    """Options of a compression would be refused without it."""
    given = {"lr": 0.3, "accumulate": 4, "compress": "powersgd", "rank": 2, "start_compress": 5}
    probing._question.given = {"ddp": given}
    recorded = probing._recorded_variant()
    assert recorded.options == {"lr": 0.3}
    assert recorded.joint_steps


@pytest.mark.parametrize(
    ("seed", "reason", "failed"),
    [
        (1, "the loss became nan at step 7 on node 1", False),
        (0, "the loss became nan at step 7 on node 1", True),
        (1, "worker 1 was killed by SIGKILL", True),
    ],
)
def test_a_candidate_fails_by_a_divergence_only_if_no_other_seed_trained(probing, seed, reason, failed):
    probing._fail("a", seed, reason)
    assert probing.failed("a") == failed
    assert probing.failed("a", seed)


def test_data_that_changed_are_refused_before_one_node_trains_again(probing, monkeypatch):
    other = SimpleNamespace(data_source=SimpleNamespace(fingerprint="new"))
    monkeypatch.setattr(probe, "prepare_cell", lambda *_: other)
    with pytest.raises(UserError, match=r"the data have changed since step one; delete .*jsonl to probe again"):
        probing._run(probing._base, 10.0, compare_data=True)
