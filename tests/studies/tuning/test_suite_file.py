"""The suite of the winners."""

import pytest

from istbench.base.errors import UserError
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.base.options.suite import Tuning, read_suite
from istbench.studies.tuning.suite_file import rows_of, suite_text, write_suite
from istbench.studies.tuning.trials import Contest, Trial, Tried


def contest(method, nodes, failed=0, **options):
    trial = Trial(method=method, number=2, options=options, settings=options)
    won = Tried(trial=trial, value=0.5)
    lost = Tried(trial=trial, failed=True)
    return Contest(method=method, nodes=nodes, tried=(won,) * (20 - failed) + (lost,) * failed, best=won)


def test_compare_reads_the_winners_with_their_budget_and_the_trials(tmp_path):
    shared = RunRequest(
        workload="speech", method="ist", epochs=2.5, eval_every=Interval(seconds=2.0), held_out=0.1, target=0.77,
        device="cpu", workload_options={"hidden": "512"}, timeout_s=9.0,
    )  # fmt: skip
    contests = [
        contest("ist", 2, lr=0.00001, local_steps=7),
        contest("ddp", 2),
        contest("ist", 4, lr=0.25, deal=("late", 'a "quoted" name'), streaming=True),
        Contest(method="ddp", nodes=4, tried=(), best=None),
    ]
    text = suite_text(
        contests,
        "speech",
        shared,
        Tuning(trials=20, seed=3, held_out=0.1, judged_by="accuracy"),
        seeds=2,
        command="istbench tune --out 'two\nlines'",
    )
    write_suite(tmp_path / "new" / "s.toml", text)
    two, four = read_suite(tmp_path / "new" / "s.toml")
    assert two.methods == (("ist", {"lr": 0.00001, "local_steps": 7}), ("ddp", {}))
    assert four.methods == (("ist", {"lr": 0.25, "deal": ["late", 'a "quoted" name'], "streaming": True}),)
    assert (two.nodes, four.nodes, two.seeds) == ((2,), (4,), (0, 1))
    for request in (*two.requests(), *four.requests()):
        assert (request.tuned, request.held_out, request.target) == (20, None, None)
        assert (request.epochs, request.eval_every) == (2.5, Interval(seconds=2.0))
        assert (request.device, request.timeout_s) == ("auto", 300.0)
        assert request.workload_options == {"hidden": "512"}


def test_a_method_with_failed_trials_names_the_others_alone(tmp_path):
    contests = [contest("ist", 2), contest("local_sgd", 2, failed=3, lr=0.5), contest("ddp", 2)]
    shared = RunRequest(workload="toy", method="ist", steps=8)
    text = suite_text(contests, "toy", shared, Tuning(trials=20, seed=0, held_out=0.1), seeds=1, command="tune")
    (tmp_path / "s.toml").write_text(text)
    found = {
        request.method: request.tuned for suite in read_suite(tmp_path / "s.toml") for request in suite.requests()
    }
    assert found == {"ist": 20, "ddp": 20, "local_sgd": 17}


@pytest.mark.parametrize("budget", [{"steps": 9}, {"max_seconds": 60.0}, {"epochs": 1.0, "max_seconds": 60.0}])
def test_epochs_of_the_rows_replace_the_whole_budget_of_a_trial(budget):
    shared = RunRequest(workload="speech", method="ist", batch_size=64, **budget)
    assert rows_of(shared, None) == shared
    assert rows_of(shared, 20.0) == RunRequest(workload="speech", method="ist", batch_size=64, epochs=20.0)


def test_a_wrong_tuning_table_is_refused_with_its_line(tmp_path):
    path = tmp_path / "s.toml"
    for tuning, said in (
        ("tuning = { trials = 0, seed = 0, held_out = 0.1 }", "line 3"),
        ("tuning = { trials = 2, seed = 0, held_out = 1.0 }", "line 3"),
        ("tuning = { trials = 2, seed = 0, held_out = 0.1 }\nrun = { tuned = 3 }", "line 4: run.tuned"),
    ):
        path.write_text(f"workload = 'toy'\nmethods = ['ddp']\n{tuning}\n")
        with pytest.raises(UserError, match=said):
            read_suite(path)
