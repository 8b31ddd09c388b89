"""Reading results directories, also broken ones."""

import json
import os
import shutil

import pytest
from fake_runs import evaluation, header, part_on, ramp, resume, write_plausible, write_run

from istbench.base.errors import UserError
from istbench.results.load import load_run, load_runs


def test_a_missing_or_empty_results_directory_says_the_way_out(results):
    with pytest.raises(UserError, match=r"does not exist; `istbench run \.\.\. --out .*results`"):
        load_runs(results)
    (results / "runs").mkdir(parents=True)
    with pytest.raises(UserError, match=r"runs is empty; `istbench run"):
        load_runs(results)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file", "file is a file; give a directory that has runs/$"),
        ("mail.zip", "mail.zip is a file; unpack it, and give the directory in it that has runs/$"),
        ("train.record.json", "is a file; .* `istbench replay` takes a file of `istbench record`$"),
    ],
)
def test_a_file_for_a_results_directory_says_the_way_out(tmp_path, name, said):
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=said):
        load_runs(tmp_path / name)


def test_results_close_by_are_named(results, monkeypatch):
    write_plausible(results, "ddp")
    run = next((results / "runs").iterdir())
    monkeypatch.chdir(results.parent)
    for given in (results.parent, results.parent / "result", run):
        with pytest.raises(UserError, match=f"no runs in .*; {results} has some$"):
            load_runs(given)


def test_a_mistyped_record_is_a_file_that_is_missing(tmp_path):
    (tmp_path / "train.record.json").write_text("{}")
    with pytest.raises(UserError, match=r"^no file .*trian.record.json; did you mean 'train.record.json'\?"):
        load_runs(tmp_path / "trian.record.json")


def test_unreadable_runs_become_problems_and_the_others_are_read(results):
    write_plausible(results, "ddp")
    broken = write_plausible(results, "ist")
    broken.run_json.write_text("{")
    other = write_plausible(results, "p3")
    other.update(schema=1)
    lacking = write_plausible(results, "local_sgd")
    head = json.loads(lacking.run_json.read_text())
    del head["targets"]
    lacking.run_json.write_text(json.dumps(head))
    torn = write_plausible(results, "ddp", seed=1)
    torn.events_jsonl.write_text('nonsense\n{"event": "stop"}\n')
    (results / "runs" / "nothing-in-it").mkdir()
    runs, problems = load_runs(results)
    assert [run.header.cell for run in runs] == ["speech-ddp-n2-s0"]
    assert len(problems) == 5
    text = "\n".join(problems)
    for expected in ("not JSON", "schema 1, this istbench reads 2", "targets is missing", "line 1", "no run in"):
        assert expected in text


def test_an_event_that_lacks_something_is_a_problem(results):
    directory = write_plausible(results, "ddp")
    with directory.events_jsonl.open("a") as file:
        file.write('{"event": "evaluation", "step": 3, "samples": 5}\n')
    with pytest.raises(UserError, match=r"line \d+: train_s is missing; delete"):
        load_run(directory)


@pytest.mark.parametrize(("kept", "step"), [(2, 10), (0, None)])
def test_a_finished_run_that_lost_its_last_evaluation_is_a_problem(results, kept, step):
    directory = write_run(results, header(), ramp(9.0))
    lines = directory.events_jsonl.read_bytes().splitlines(True)
    directory.events_jsonl.write_bytes(b"".join(lines[: 1 + kept]))
    write_plausible(results, "ist")
    runs, problems = load_runs(results)
    assert [run.header.method for run in runs] == ["ist"]
    reason = "holds no evaluation of a finished run"
    if step is not None:
        reason = f"ends in an evaluation of step {step} that is not the run's result of step 100"
    assert problems == [f"{directory.events_jsonl} {reason}; delete {directory.path} to run the cell again"]


def test_a_finished_run_with_events_of_another_is_a_problem(results):
    directory = write_run(results, header(), ramp(9.0))
    other = write_run(results, header(seed=1), ramp(9.0, 0.8))
    shutil.copyfile(other.events_jsonl, directory.events_jsonl)
    with pytest.raises(UserError, match="of step 100 that is not the run's result of step 100; delete"):
        load_run(directory)


@pytest.mark.parametrize("name", ["a copy", "zz", "speech-ddp-n2-s0 copy"])
def test_the_original_of_a_copied_run_counts_and_the_copy_is_named_once(results, name):
    directory = write_plausible(results, "ddp")
    copy = results / "runs" / name
    shutil.copytree(directory.path, copy)
    runs, problems = load_runs(results)
    assert [run.directory.path for run in runs] == [directory.path]
    assert problems == [f"{copy}: a copy of {directory.path}, which is shown"]


def test_one_of_two_copies_counts_where_the_original_is_gone(results):
    directory = write_plausible(results, "ddp")
    first, second = results / "runs" / "one", results / "runs" / "two"
    shutil.copytree(directory.path, second)
    directory.path.rename(first)
    runs, problems = load_runs(results)
    assert [run.directory.path for run in runs] == [first]
    assert problems == [f"{second}: a copy of {first}, which is shown"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2]", "run.json: it holds no JSON object; delete"),
        ("3", "run.json: it holds no JSON object; delete"),
        ("{}", "run.json names no schema, this istbench reads 2"),
    ],
)
def test_a_header_that_is_no_object_is_said_to_be_none(results, content, said):
    directory = write_plausible(results, "ddp")
    directory.run_json.write_text(content)
    with pytest.raises(UserError, match=said):
        directory.header()


@pytest.fixture
def as_nobody():
    """Be another user of this machine, where the tests are root's."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def unreadable(results):
    directory = write_plausible(results, "ddp")
    directory.path.chmod(0o700)
    return directory


def test_a_run_of_another_user_is_a_line(unreadable, as_nobody):
    for read in (unreadable.exists, unreadable.header, unreadable.events):
        with pytest.raises(
            UserError, match=r"cannot read .*: Permission denied; make .* readable, or choose another"
        ):
            read()


def test_only_the_cells_asked_for_are_read(results):
    write_plausible(results, "ddp")
    write_plausible(results, "ist")
    runs, problems = load_runs(results, ["speech-ist-n2-s0", "never-started"])
    assert [run.header.method for run in runs] == ["ist"]
    assert problems == []


def test_what_a_run_reached(results):
    events = [evaluation(0, 0.0, 0.1), evaluation(10, 5.0, 0.75), evaluation(20, 9.0, None)]
    run = load_run(write_run(results, header(), events))
    assert run.reached(0.7).seconds == pytest.approx(5 * 0.6 / 0.65)
    assert run.reached(0.8) is None
    assert run.curve.best() == 0.75


def test_the_level_a_run_stops_at_is_one_of_its_targets(results):
    head = header()
    head["config"]["target"] = 0.75
    assert load_run(write_run(results, head, [evaluation(0, 0.0, 0.1)])).targets == (0.7, 0.75, 0.8)


def test_a_run_that_went_on_elsewhere_says_so(results):
    directory = write_plausible(results, "ddp")
    assert load_run(directory).changes == ()
    last = load_run(directory).curve.evaluations[-1]
    directory.append(resume(50, part=part_on("server", cores=64)))
    directory.append(resume(100, part=part_on("laptop", cores=8)))
    directory.append(last)
    assert load_run(directory).changes == (
        "resumed on another machine: laptop (8 cores), from step 50 on server (64 cores), from step 100 on laptop "
        "(8 cores)",
    )
