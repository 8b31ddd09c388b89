"""What the probes of a question keep: candidates whose seeds diverged, and data that changed since step one."""

import time
from types import SimpleNamespace

import pytest
from fake_runs import averaging_trace, evaluation, header, write_run

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.studies.advise import probe
from istbench.studies.advise.journal import Journal, StepRecorded
from istbench.studies.advise.probe import ProbeFailures


def test_step_one_sends_every_gradient_as_it_is():
    """Options of a compression would be refused without it."""
    given = {"lr": 0.3, "accumulate": 4, "compress": "powersgd", "rank": 2, "start_compress": 5}
    recorded = probe.recorded_variant({"ddp": given})
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
def test_a_candidate_fails_by_a_divergence_only_if_no_other_seed_trained(seed, reason, failed):
    failures = ProbeFailures()
    failures.add("a", seed, reason, {0})
    assert failures.has("a") == failed
    assert failures.has("a", seed)


def test_data_that_changed_are_refused_before_one_node_trains_again(tmp_path, monkeypatch):
    run = write_run(
        tmp_path, header(nodes=1, workload="toy"), [evaluation(24, 0.1, 0.5)], trace=averaging_trace(nodes=1)
    )
    Journal.of(tmp_path, "question").add(StepRecorded(cell=run.header().cell))
    question = SimpleNamespace(
        base=RunRequest(workload="toy", method="ddp", nodes=2), given={}, as_json=lambda: "question",
        profile=lambda recorded: None,
    )  # fmt: skip
    backend = SimpleNamespace(run=lambda *_: pytest.fail("it trains"))
    screen = SimpleNamespace(note=print, preparing=print, training=print)
    other = SimpleNamespace(data_source=SimpleNamespace(fingerprint="new"))
    monkeypatch.setattr(probe, "prepare_cell", lambda *_: other)
    with pytest.raises(UserError, match=r"the data have changed since step one; delete .*jsonl to probe again"):
        probe.probe(question, backend, tmp_path, screen, seconds=60.0, answer_s=0.0, started=time.monotonic())
