"""From the runs of the trials to their judgement, on runs that nobody trained."""

import pytest
from fake_runs import averaging_trace, evaluation, header, ramp, write_run

from istbench.base.errors import UserError
from istbench.cluster.profile import load_profile
from istbench.studies.tuning.table import tuning_table
from istbench.studies.tuning.trials import Judge, Trial, judge_runs

BY_SECONDS = Judge(target=0.8, cluster=load_profile("m5.2xlarge"))
MISS = [evaluation(0, 0.0, 0.0), evaluation(100, 9.0, 0.6)]


def judged(results, judge, *endings, damaged=None):
    """The judgement on the trials of `ddp` that end as `endings`, pairs of events and whether there is a trace.

    damaged: the name of a file of the first run that is torn.
    """
    runs, trials = [], []
    for number, (events, traced) in enumerate(endings, start=1):
        head = header("ddp", options=f"lr={number}")
        head["config"]["method_options"] = settings = {"lr": float(number)}
        runs.append(write_run(results, head, events, trace=averaging_trace() if traced else None))
        trials.append(Trial(method="ddp", number=number, options=settings, settings=settings))
    if damaged:
        (runs[0].path / damaged).write_text('{"torn\n')
    found = judge_runs(runs, {"ddp": trials}, [2], judge)
    return found, "\n".join(map(str, tuning_table(found, judge, {"ddp": []}).footer))


def test_a_trial_at_the_target_without_a_replay_is_no_miss(tmp_path):
    found, footer = judged(tmp_path, BY_SECONDS, (ramp(9.0), False), (ramp(9.0), True), (MISS, False))
    (contest,) = found.contests
    assert [own.failed for own in contest.tried] == [True, False, False], "a miss needs no replay"
    assert contest.best.trial.number == 2
    assert "Failed: 1 trials have no finished run, or no replay of it, so the methods had unequal" in footer


def test_its_metric_does_not_compete_with_those_of_whole_budgets(tmp_path):
    found, _ = judged(tmp_path, BY_SECONDS, (ramp(9.0), False), (MISS, True))
    assert found.contests[0].best.trial.number == 2


def test_without_seconds_no_trial_needs_a_replay(tmp_path):
    found, footer = judged(tmp_path, Judge(), (ramp(9.0), False), (MISS, False))
    assert found.contests[0].best.trial.number == 1
    assert "unequal budgets" not in footer


@pytest.mark.parametrize("file", ["run.json", "events.jsonl"])
def test_a_damaged_run_is_a_failed_trial_and_the_others_are_judged(tmp_path, file):
    found, footer = judged(tmp_path, Judge(), (ramp(9.0), False), (MISS, False), damaged=file)
    (contest,) = found.contests
    assert [own.failed for own in contest.tried] == [True, False]
    assert contest.best.trial.number == 2
    (line,) = found.unreadable
    assert f"{file}" in line
    assert "to run the cell again" in line
    assert "Failed: 1 trials have no finished run" in footer
    with pytest.raises(UserError, match=file):
        judged(tmp_path / "alone", Judge(), (ramp(9.0), False), damaged=file)
