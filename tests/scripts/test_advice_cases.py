"""The truth of the cases of `advice_cases.py`: which candidates run, for how long, and what a failure leaves."""

import importlib
import json
import math
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace

import msgspec
import pytest

from istbench.studies.advise.advice_file import save_advice
from istbench.studies.advise.answer import advise
from istbench.studies.advise.candidate import NO_TIME
from tests.studies.advise.probes import ACCURACY, LINKS, candidate, curve

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"
NEVER = {0: curve([(step, 0.5) for step in range(0, 100, 10)])}


def run(method, *words):
    return ("istbench", "run", f"--method={method}", *words)


WITH_ODDS = (
    candidate("ist", compute=0.001, command=run("ist", "--steps=100", "--eval-every=10")),
    candidate("ddp", baseline=True, command=run("ddp", "--steps=300")),
)
WITHOUT = (
    candidate("fsdp", curves={}, stopped="learns as ddp does, which is faster here", command=run("fsdp")),
    candidate("zero", curves={}, stopped=NO_TIME, command=run("zero")),
    candidate("p3", failed="needs 9 GiB of a node that has 3", command=run("p3")),
)


def advice(candidates=(*WITH_ODDS, *WITHOUT)):
    return advise(candidates, LINKS, workload="toy", nodes=2, metric=ACCURACY, target=0.8)


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("advice_cases")


@pytest.fixture
def case(program, tmp_path):
    save_advice(advice(), tmp_path / "toy")
    case = program.Case(name="toy", task=["toy"], network=["--nodes", "2"], place=tmp_path / "toy")
    case.write(program.Done(wall_s=60.0))
    return case


@pytest.fixture
def ends(program, monkeypatch):
    """Sets the end of the run of each method, a status or seconds; returns the words of all runs so far."""
    runs = []

    def ending(**by_method):
        def ran(words, **_):
            (method,) = (word.partition("=")[2] for word in words if word.startswith("--method="))
            runs.append(words)
            end = by_method[method]
            if isinstance(end, int):
                return SimpleNamespace(returncode=end, stdout=b"")
            printed = json.dumps({"targets": [{"level": 0.7, "train_s": 1.0}, {"level": 0.8, "train_s": end}]})
            return SimpleNamespace(returncode=3 if end is None else 0, stdout=printed.encode())

        monkeypatch.setattr(program.subprocess, "run", ran)
        return runs

    return ending


def measure(program, case, most=100):
    program.measure(case, case.done(), most)
    return case.done()


def test_all_candidates_that_can_train_there_are_measured_the_likely_ones_first(program):
    assert [one.label for one in program.to_measure(advice(), 100)] == ["ist", "ddp", "zero", "fsdp"]
    assert [one.label for one in program.to_measure(advice(), 2)] == ["ist", "ddp"]


def test_one_node_counts_in_any_case_and_trains_outside_the_lab(program, tmp_path, ends):
    alone = candidate("one node", method="ddp", compute=0.02, nodes=1, command=run("ddp", "--steps=300"))
    found = advice((*WITH_ODDS[:1], candidate("zero", compute=0.01, command=run("zero", "--steps=300")), alone))
    assert [one.label for one in program.to_measure(found, 1)] == ["ist", "one node"]
    save_advice(found, tmp_path / "toy")
    case = program.Case(name="toy", task=["toy"], network=["--nodes", "2"], place=tmp_path / "toy")
    case.write(program.Done(wall_s=60.0))
    runs = ends(ist=1.0, ddp=2.0)
    assert measure(program, case, most=1).truth == {"ist": 1.0, "one node": 2.0}
    (lab, _), (own, *words) = (words[words.index("istbench") + 1 :][:2] for words in runs)
    assert (lab, own, words) == ("lab", "run", ["--nodes=1"])


def test_the_others_train_until_they_are_slower_than_the_fastest(program):
    found = advice()
    by_label = {one.label: one for one in found.choices}
    soon = msgspec.structs.replace(by_label["ddp"], seconds=4.0)
    assert program.longer(soon, found, {"ist": 20.0, "zero": 40.0, "fsdp": None}) == [
        "--steps=1200", "--eval-every=1.333s", "--max-seconds=21",
    ]  # fmt: skip
    late = msgspec.structs.replace(by_label["ddp"], seconds=400.0)
    assert program.longer(late, found, {"ist": 20.0})[1] == "--eval-every=1.75s", "also if none is expected soon"
    words = program.longer(by_label["fsdp"], found, {"ist": 20.0})
    assert words == ["--steps=400", "--eval-every=1.75s", "--max-seconds=21"], "without steps, those of the advice"


def test_a_schedule_trains_as_many_steps_as_its_advice_says(program):
    found = advice()
    cosine = msgspec.structs.replace(found.best, options={"schedule": "cosine"})
    assert program.longer(cosine, found, {"ist": 20.0})[0] == "--steps=100"
    assert program.longer(found.best, found, {"ist": 20.0})[0] == "--steps=400"


def test_the_further_cases_need_no_text(program, tmp_path):
    words = SimpleNamespace(toy=False, text=None, do="both", runs=tmp_path / "runs", cases=[*program.OTHERS])
    cases = {case.name: case for case in program.all_cases(words)}
    assert set(program.OTHERS) < set(cases)
    assert cases["beats-1gbit-4"].network == ["--nodes", "4", "--bandwidth", "1gbit"]
    for name in program.OTHERS:
        assert (tmp_path / "runs" / cases[name].task[0]).exists()
    words.cases = None
    with pytest.raises(SystemExit, match="give --text"):
        program.all_cases(words)


def test_a_run_is_bounded_before_any_candidate_has_reached_the_target(program):
    found = advice()
    assert program.longer(found.best, found, {"ist": None})[-1] == "--max-seconds=600"
    late = msgspec.structs.replace(found, best=msgspec.structs.replace(found.best, seconds=1000.0))
    assert program.longer(late.best, late, {})[-1] == "--max-seconds=4000"
    nobody = advice([candidate("ddp", curves=NEVER, command=run("ddp")), candidate("zero", curves=NEVER)])
    assert nobody.verdict == "none"
    assert program.longer(nobody.choices[0], nobody, {}) == ["--eval-every=50s", "--max-seconds=600"]


def test_the_seconds_are_those_of_the_target_of_the_advice(program):
    printed = b'{"targets": [{"level": 0.7, "train_s": 3.0}, {"level": 0.8, "train_s": null}]}'
    assert program.reached(printed, 0.7) == 3.0
    assert program.reached(printed, 0.8) is None


def test_a_failed_candidate_is_a_miss_with_its_name_and_the_others_still_run(program, case, ends):
    runs = ends(ist=1, ddp=20.0, zero=2, fsdp=None)
    done = measure(program, case)
    assert done.truth == {"ist": None, "ddp": 20.0, "zero": None, "fsdp": None}
    assert (done.failed, done.complete) == (["ist", "zero"], True)
    assert program.regret_text(case.advice(), done) == "failed"
    assert "4, failed: ist, zero |" in program.row(case, done, case.advice())
    assert "--max-seconds=21" in runs[-1]
    measure(program, case)
    assert len(runs) == 4, "measured candidates do not run again"


def test_ctrl_c_stops_and_a_killed_run_runs_again(program, case, ends):
    ends(ist=10.0, ddp=130)
    with pytest.raises(SystemExit, match="run the program again"):
        measure(program, case)
    assert case.done().truth == {"ist": 10.0}
    ends(ddp=-9, zero=12.0, fsdp=11.0)
    done = measure(program, case)
    assert (done.truth, done.failed, done.complete) == ({"ist": 10.0, "zero": 12.0, "fsdp": 11.0}, [], False)
    ends(ddp=8.0)
    done = measure(program, case)
    assert done.complete
    assert program.regret_text(case.advice(), done) == "25.0%"


def test_an_advice_that_fails_leaves_the_case_for_the_next_command(program, tmp_path, monkeypatch):
    case = program.Case(name="toy", task=["toy"], network=[], place=tmp_path / "toy")
    monkeypatch.setattr(program.subprocess, "run", lambda words, **_: SimpleNamespace(returncode=1, stdout=b""))
    program.advise(case, 1.0)
    assert case.done() is None


def test_a_recommendation_counts_as_a_miss_though_nobody_reached_the_target(program):
    checked = program.MeasuredAdvice(advice=advice(), truth={"ist": None, "ddp": None})
    assert program.summary([checked]) == ["Recommendations that missed the target, or failed: 1."]
    right = program.MeasuredAdvice(advice=advice(), truth={"ist": 10.0, "ddp": 20.0})
    lines = program.summary([checked, right])
    assert lines[0].startswith("Regret in time to target over 1 cases: median 0.0%, worst 0.0%.")
    assert lines[0].endswith("missed the target, or failed: 1.")
    assert math.isclose(sum(one.advised for one in program.calibration([checked, right])), 1)


def test_the_spread_that_a_case_needs_is_beside_the_one_of_its_range(program):
    def told(found, **changed):
        best = msgspec.structs.replace(advice().best, seconds=10.0, low=9.0, high=12.0)
        return program.MeasuredAdvice(
            advice=msgspec.structs.replace(advice(), best=best, **changed), truth={"ist": found}
        )

    def needs(found, **changed):
        return program.needed_spread(told(found, **changed))

    assert needs(9.5, run_spread=0.0) == needs(11.9, run_spread=0.0) == 0
    wider = needs(8.0, run_spread=0.0)
    assert math.hypot(math.log(10 / 9), NormalDist().inv_cdf(0.9) * wider) == pytest.approx(math.log(10 / 8))
    assert needs(8.0, run_spread=0.05) == pytest.approx(math.hypot(wider, 0.05))
    assert needs(None) == math.inf
    assert program.held_by([0.0, 0.1, 0.2, 0.3]) == 0.3, "of five cases, four are within it"
    assert program.held_by([0.1, 0.2]) == math.inf, "too few cases tell no spread"
    assert "of 2 of 3 recommendations" in program.ranges([told(10.0), told(11.0), told(20.0)])


def test_a_finished_case_stays_where_only_its_table_was_kept(program, case, ends, tmp_path, monkeypatch):
    runs = ends(ist=10.0, ddp=20.0, zero=None, fsdp=None)
    measure(program, case)
    target, text = tmp_path / "target", tmp_path / "input.txt"
    program.write_table([case], SimpleNamespace(target=target, minutes=10.0))
    text.touch()
    monkeypatch.setattr(program, "TASKS", {"toy": "toy"})
    monkeypatch.setattr(program, "NETWORKS", {"1gbit": "--nodes 2"})
    monkeypatch.setattr(program, "OTHERS", ())
    (target / "cases.jsonl").write_text((target / "cases.jsonl").read_text().replace('"toy"', '"toy-1gbit"'))
    words = ["advice_cases", str(tmp_path / "fresh"), str(target), f"--text={text}"]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr(program, "check", lambda: None)
    program.main()
    assert len(runs) == 4, "nothing runs again"
    assert "| toy-1gbit | ist |" in (target / "README.md").read_text()
    assert len((target / "advice.jsonl").read_bytes().splitlines()) == 1
    (target / "advice.jsonl").write_bytes(b"")
    with pytest.raises(SystemExit, match="has 1 lines and advice.jsonl beside it 0"):
        program.main()


def test_odds_are_counted_by_bins(program):
    told = advice()
    right, wrong, single = {"ist": 1.0, "ddp": 2.0}, {"ist": 2.0, "ddp": 1.0}, {"ist": 1.0}
    checked = [
        program.MeasuredAdvice(advice=msgspec.structs.replace(told, odds=odds), truth=truth)
        for odds, truth in ((0.9, right), (0.94, wrong), (0.92, single), (1.0, right), (0.55, wrong), (0.5, right))
    ]
    found = program.calibration(checked)
    assert [(one.low, one.high, one.advised, one.right) for one in found] == [
        (0.5, 0.6, 2, 1),
        (0.9, 0.95, 2, 1),
        (0.95, 1.0, 1, 1),
    ]
    assert found[1].expected == pytest.approx(1.84)
    again = msgspec.json.decode(msgspec.json.encode(checked), type=list[program.MeasuredAdvice])
    assert program.calibration(again) == found


def test_each_checked_advice_is_in_one_bin(program):
    pairs, told = [(percent / 100, percent % 3 == 0) for percent in range(101)], advice()
    checked = [
        program.MeasuredAdvice(
            advice=msgspec.structs.replace(told, odds=odds), truth={"ist": 1.0, "ddp": 2.0 if hit else 0.5}
        )
        for odds, hit in pairs
    ]
    found = program.calibration(checked)
    assert sum(one.advised for one in found) == len(pairs)
    assert sum(one.right for one in found) == sum(hit for _, hit in pairs)
    assert all(one.low * one.advised <= one.expected + 1e-9 for one in found)
