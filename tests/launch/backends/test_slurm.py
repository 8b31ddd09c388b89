"""Cells as jobs: submitted, followed, found again; on submitit's executors that need no Slurm."""

import json
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import submitit
from fake_clock import FakeClock
from fake_runs import RESULT, header, ramp, write_run
from garbage import one_line
from small_task import write_task
from submitit.core.utils import FailedJobError

from istbench.base.decode import decode_own
from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.cli import main
from istbench.launch.backends import slurm
from istbench.launch.backends.backend import Outcome
from istbench.launch.backends.slurm import SlurmOptions, run_as_jobs
from istbench.results.header import Header
from istbench.results.store import RunDirectory

REQUESTS = [RunRequest(workload="toy", method=method, steps=4) for method in ("ddp", "ist", "p3")]
NAMES = ["a", "b", "c"]
DEBUG = SlurmOptions.parse(["executor=debug"])
SLURM = SlurmOptions()


def as_header(request, name):
    """The header of `request`, whose cell is `name`."""
    head = header(request.method, cell=name)
    head["config"]["save"] = None if request.save is None else str(request.save)
    return msgspec.convert(head, Header, dec_hook=decode_own)


def run(requests, names, out, options, say, **how):
    """Run cells as jobs, and say how each ended; returns a line for each that failed."""
    failures = []
    cells = [as_header(request, name) for request, name in zip(requests, names, strict=True)]
    for outcome in run_as_jobs(requests, cells, out, options, say, **how):
        say(f"{outcome.cell}: {'failed' if outcome.failure else 'done' if outcome.fresh else 'done before'}")
        failures += [f"{outcome.cell}: {outcome.failure}"] if outcome.failure else []
    return failures


@pytest.fixture
def said():
    return []


@pytest.fixture
def ran(monkeypatch):
    """The methods that were run; `ist` fails."""
    ran = []

    def train(_, cells, *__):
        (method,) = [cell.method for cell in cells]
        ran.append(method)
        if method == "p3":
            raise KeyboardInterrupt
        yield Outcome(cell=method, failure=RunFailed("worker 1 died") if method == "ist" else None)

    monkeypatch.setattr(slurm.Here, "run", train)
    return ran


class FakeJob:
    """A job that Slurm has, done when asked for the second time."""

    def __init__(self, folder, job_id):
        self.job_id, self.asked, self.cancelled = job_id, 0, False
        self.paths = SimpleNamespace(folder=folder)

    def done(self, force_check=False):
        self.asked += 1
        return self.asked > 1

    def exception(self):
        return None if self.job_id == "7" else RuntimeError("Job is out of memory\n")

    def result(self):
        return None


class FakeExecutor:
    """Numbers the jobs that it is given, and takes so many at a time, and in all."""

    def __init__(self):
        self.given, self.jobs = [], []
        self.at_a_time = self.in_all = 100

    def update_parameters(self, **_):
        pass

    def submit(self, job):
        alive = [job for job in self.jobs if job.asked < 2]
        if len(alive) >= self.at_a_time or len(self.jobs) >= self.in_all:
            raise FailedJobError("sbatch: error:\nQOSMaxSubmitJobPerUserLimit")
        self.given.append(job.request.method)
        self.jobs.append(FakeJob("there", str(8 + len(self.given))))
        return self.jobs[-1]


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    monkeypatch.setattr(slurm, "time", made)
    return made


@pytest.fixture
def executor(monkeypatch, clock):
    made = FakeExecutor()
    monkeypatch.setattr(submitit, "AutoExecutor", lambda **_: made)
    monkeypatch.setattr(submitit, "SlurmJob", FakeJob)
    return made


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """Makes executors of submitit by options; they take no job."""
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = []

    class Refusing(submitit.AutoExecutor):
        def __init__(self, **given):
            super().__init__(**given)
            self.given = given

        def submit(self, job):
            made.append(self)
            raise FailedJobError("no room")

    def make(options):
        monkeypatch.setattr(submitit, "AutoExecutor", Refusing)
        with pytest.raises(UserError, match="took no job: no room"):
            run(REQUESTS[:1], NAMES[:1], tmp_path, options, print)
        return made[-1]

    return make


def test_every_cell_is_a_job_and_one_that_fails_stops_no_other(ran, said, tmp_path):
    failures = run(REQUESTS, NAMES, tmp_path, DEBUG, said.append)
    assert ran == ["ddp", "ist", "p3"]
    assert failures == ["b: worker 1 died", "c: interrupted; the same command resumes it"]
    assert said[1:] == ["a: done", "b: failed", "c: failed"]


def test_a_cell_that_is_done_is_no_job(ran, said, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm.RunDirectory, "is_done", lambda run: run.path.name == "a")
    run(REQUESTS, NAMES, tmp_path, DEBUG, said.append)
    assert (ran, said[0]) == (["ist", "p3"], "a: done before")
    run(REQUESTS[:1], NAMES[:1], tmp_path, DEBUG, said.append, again=True)
    assert ran[-1] == "ddp"


def test_a_done_cell_without_its_weights_and_a_damaged_one_end_no_other(ran, said, tmp_path):
    RunDirectory.of(tmp_path, "a").create(header("ddp", cell="a", result=RESULT))
    damaged = RunDirectory.of(tmp_path, "b")
    damaged.path.mkdir()
    damaged.run_json.write_text("{")
    saving = msgspec.structs.replace(REQUESTS[0], save=tmp_path / "weights")
    unsaved, broken = run([saving, REQUESTS[1], REQUESTS[0]], NAMES, tmp_path, DEBUG, said.append)
    assert unsaved == (
        f"a: a is done already, and its weights are not in {tmp_path / 'weights'}; "
        "--again trains it again and saves them"
    )
    assert broken.startswith(f"b: {damaged.run_json}")
    assert (ran, said[-1]) == (["ddp"], "c: done")


@pytest.mark.parametrize(
    ("typed", "asked", "device"),
    [(["gpus=1"], "auto", "cuda"), ([], "auto", "cpu"), (["gpus=1"], "cpu", "cpu"), ([], "cuda", None)],
)
def test_a_cell_is_named_by_the_device_of_its_job(monkeypatch, said, tmp_path, typed, asked, device):
    """This machine has no GPU, and few cores; its own refusals do not count for a job on another."""
    taken = []

    def taking(requests, cells, *_, **__):
        taken.extend((request.device, cell.config.device) for request, cell in zip(requests, cells, strict=True))
        return iter(())

    monkeypatch.setattr(slurm, "run_as_jobs", taking)
    backend = slurm.Slurm(options=SlurmOptions.parse(typed))
    screen = SimpleNamespace(note=said.append, preparing=lambda *_: None)
    request = RunRequest(workload="toy", method="ddp", steps=4, device=asked, threads=4000)
    if device is None:
        with pytest.raises(UserError, match="the job asks for no GPU; add --slurm gpus=1, or use --device cpu"):
            list(backend.run([request], tmp_path, False, screen))
        return
    list(backend.run([request], tmp_path, False, screen))
    assert taken == [(device, device)]


def test_a_done_run_of_another_cell_is_refused_without_a_job(ran, said, tmp_path):
    RunDirectory.of(tmp_path, "a").create(header("ddp", result=RESULT))
    (failure,) = run(REQUESTS[:1], NAMES[:1], tmp_path, DEBUG, said.append)
    assert "run.json is of cell speech-ddp-n2-s0 and lies in the directory of a; move it back" in failure
    assert ran == []


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """A job of cell `a` that Slurm has when first asked, with a pickle in the folder that names it."""

    class Read:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'EXECUTED')!r}, 'w')",)

    folder = tmp_path / "slurm/7"
    folder.mkdir(parents=True)
    (tmp_path / "slurm/jobs.json").write_text('{"a": "7", "other": "1"}')
    for task in range(2):
        (folder / f"7_{task}_result.pkl").write_bytes(pickle.dumps(Read()))
    asked = []

    def queued():
        asked.append(None)
        return {"7"} if len(asked) == 1 else set()

    monkeypatch.setattr(slurm, "queued_jobs", queued)
    yield
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.parametrize(
    ("status", "failure"),
    [("done", None), ("failed", "a: it ran out of luck"), (None, "a: job 7 left the queue without a result")],
)
def test_a_job_that_slurm_still_has_is_waited_for(executor, earlier, said, tmp_path, monkeypatch, status, failure):
    def ends(queue, identity):
        if status is not None:
            write_run(tmp_path, header("ddp", cell="a", status=status, error="it ran out of luck"), ramp(9.0))
        return identity == "7"

    monkeypatch.setattr(slurm.Queue, "lacks", ends)
    failures = run(REQUESTS[:2], NAMES[:2], tmp_path, SLURM, said.append)
    assert (executor.given, said[0]) == (["ist"], "2 jobs: 7 9")
    *told, last = failures
    assert [line.partition(";")[0] for line in told] == ([failure] if failure else [])
    assert last == "b: job 9 ended: Job is out of memory; its output is in there"
    assert json.loads((tmp_path / "slurm/jobs.json").read_text()) == {"a": "7", "other": "1", "b": "9"}


def test_a_queue_that_does_not_answer_lets_no_job_run_twice(executor, earlier, said, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "queued_jobs", lambda: None)
    with pytest.raises(UserError, match=r"^squeue does not answer, and Slurm may still have job 7 of a; try again"):
        run(REQUESTS[:2], NAMES[:2], tmp_path, SLURM, said.append)
    assert executor.given == []


@pytest.mark.parametrize("jobs", ['{"../a": "7"}', '{"a": "../7"}', '{"a": "%j"}'])
def test_names_that_are_paths_are_refused(executor, said, tmp_path, jobs):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/jobs.json").write_text(jobs)
    with pytest.raises(UserError, match=r"jobs\.json: .* must match .*; delete it after all"):
        run(REQUESTS[:1], NAMES[:1], tmp_path, SLURM, said.append)


def test_submitit_reads_no_pickle_that_lies_in_the_results(refusing, tmp_path):
    """The names of jobs are process ids, which others can tell before."""
    folder, other = (refusing(SlurmOptions.parse(["executor=local"])).folder.parent for _ in range(2))
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path / "slurm", 0o700)
    assert folder != other


def test_no_folder_is_made_for_jobs_where_no_job_is_submitted(said, tmp_path, monkeypatch):
    for name in NAMES:
        write_run(tmp_path, header("ddp", cell=name), ramp(9.0))
    assert run(REQUESTS, NAMES, tmp_path, DEBUG, said.append) == []
    assert not (tmp_path / "slurm").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="this machine has no `srun`"):
        run(REQUESTS[:1], ["new"], tmp_path, SLURM, said.append)
    assert list((tmp_path / "slurm").iterdir()) == []


@pytest.mark.processes
def test_ctrl_c_leaves_the_jobs_to_slurm_and_says_how_to_end_them(executor, said, tmp_path, monkeypatch):
    def interrupt(submission):
        submission.more(0)
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm.Submission, "endings", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(REQUESTS, NAMES, tmp_path, SLURM, said.append)
    assert said[-1] == "3 jobs keep running, and the same command waits for them; `scancel 9 10 11` ends them"


@pytest.mark.processes
def test_cells_that_slurm_has_no_room_for_are_submitted_as_jobs_end(executor, said, tmp_path):
    executor.at_a_time = 1
    failures = run(REQUESTS, NAMES, tmp_path, SLURM, said.append)
    assert executor.given == ["ddp", "ist", "p3"]
    assert [failure[:13] for failure in failures] == ["a: job 9 ende", "b: job 10 end", "c: job 11 end"]
    assert said == [
        "1 job: 9",
        "2 cells wait until other jobs end; Slurm takes no more: sbatch: error: QOSMaxSubmitJobPerUserLimit",
        "a: failed",
        "1 job: 10",
        "b: failed",
        "1 job: 11",
        "c: failed",
    ]


def test_slurm_is_asked_again_only_when_a_job_has_ended(executor, clock, said, tmp_path, monkeypatch):
    tried = []
    submit = executor.submit
    monkeypatch.setattr(executor, "submit", lambda job: (tried.append(job.request.method), submit(job))[1])
    executor.at_a_time = 1
    submission = slurm.Submission(tmp_path, SLURM, said.append)
    submission.left.update(
        {name: slurm.CellJob(request=r, out="", again=False) for r, name in zip(REQUESTS, NAMES, strict=True)}
    )

    def left_after(*alive):
        return [submission.more(number) or len(submission.left) for number in alive]

    assert left_after(0, 1, 1, 1) == [2, 2, 2, 2]
    assert tried == ["ddp", "ist"]
    executor.jobs[0].asked = 2
    assert left_after(0) == [2], "Slurm still counts a job that ended just now"
    clock.sleep(15)
    assert left_after(0, 1) == [1, 1]
    assert tried == ["ddp", "ist", "ist", "p3"]


@pytest.mark.processes
def test_cells_that_slurm_takes_none_of_any_more_have_failed(executor, said, tmp_path):
    executor.in_all = 1
    first, *others = run(REQUESTS, NAMES, tmp_path, SLURM, said.append)
    assert first.startswith("a: job 9 ended: ")
    why = "Slurm refused its job: sbatch: error: QOSMaxSubmitJobPerUserLimit"
    assert others == [f"b: {why}", f"c: {why}"]


def test_slurm_that_takes_no_job_is_said_at_once(executor, said, tmp_path):
    executor.in_all = 0
    with pytest.raises(
        UserError, match="^Slurm took no job: sbatch: error: QOS.*Limit; see the options of --slurm$"
    ):
        run(REQUESTS, NAMES, tmp_path, SLURM, said.append)
    assert said == []


@pytest.mark.processes
def test_jobs_that_were_taken_before_something_went_wrong_are_left_as_by_ctrl_c(
    executor, said, tmp_path, monkeypatch
):
    notes, submit = tmp_path / "slurm/jobs.json", executor.submit
    monkeypatch.setattr(executor, "submit", lambda job: (notes.exists() and notes.write_text("{"), submit(job))[1])
    with pytest.raises(UserError, match=f"^{notes}"):
        run(REQUESTS, NAMES, tmp_path, SLURM, said.append)
    assert said == ["2 jobs keep running, and the same command waits for them; `scancel 9 10` ends them"]


@pytest.mark.processes
def test_the_reason_is_the_last_line_of_a_traceback_and_no_path_of_a_log(executor, said, tmp_path, monkeypatch):
    trace = "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: out of luck\n"
    text = (
        f"Job (task=0) failed during processing with trace:\n{'-' * 22}\n{trace}\n{'-' * 22}\n"
        "You can check full logs with 'job.stderr(0)' and 'job.stdout(0)'or at paths:\n  - there/7_0_log.out"
    )
    monkeypatch.setattr(FakeJob, "exception", lambda job: FailedJobError(text))
    (failure,) = run(REQUESTS[:1], NAMES[:1], tmp_path, SLURM, said.append)
    assert failure == "a: job 9 ended: ValueError: out of luck; its output is in there"


def test_slurm_queues_a_job_again_as_often_as_it_reaches_its_time_limit(refusing):
    assert refusing(SLURM).given["slurm_max_num_timeout"] == 1000


def test_slurm_may_queue_a_job_again_whose_machine_failed_and_it_goes_on(refusing, monkeypatch):
    assert refusing(SLURM).parameters["additional_parameters"] == {"requeue": True}
    ran = []

    class Place:
        def __init__(self, restarts):
            self.restarts = restarts

        def run(self, cells, out, again, _screen):
            ran.append((cells, out, again, self.restarts))
            return [Outcome(cell="one")]

    monkeypatch.setattr(slurm, "Here", Place)
    job = slurm.CellJob(request=REQUESTS[0], out="out", again=True, restarts=2)
    assert job() is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert job() is None
    assert ran == [([REQUESTS[0]], Path("out"), again, 2) for again in (True, False)]


def test_a_job_that_runs_into_its_time_goes_on_and_does_not_begin_anew():
    job = slurm.CellJob(request=REQUESTS[0], out="out", again=True)
    queued = job.checkpoint().function
    assert (queued.request, queued.again) == (REQUESTS[0], False)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["partion=gpu"], "--slurm partion: unknown name; did you mean 'partition'?"),
        (["minutes=0"], "--slurm minutes must be a whole number of at least 1, not '0'"),
        (["cpus=many"], "--slurm cpus must be a whole number"),
        (["executor=lsf"], "--slurm executor must be one of slurm, local, debug"),
        (["gpu"], "--slurm 'gpu' is not of the form name=value"),
        (["partition=a b"], "--slurm partition"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(pairs, message):
    with pytest.raises(UserError) as refused:
        SlurmOptions.parse(pairs)
    assert message in one_line(refused.value)


def test_without_slurm_that_is_said(tmp_path, said, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="this machine has no `srun`"):
        run(REQUESTS, NAMES, tmp_path, SLURM, said.append)


def test_a_damaged_list_of_jobs_is_said_with_the_way_out(executor, tmp_path, said):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/jobs.json").write_text('{"a": 7}')
    with pytest.raises(UserError, match="jobs.json: .* must be text; delete it after all of its jobs have ended"):
        run(REQUESTS, NAMES, tmp_path, SLURM, said.append)


@pytest.mark.processes
def test_compare_trains_in_a_job_and_collects_what_came_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(slurm, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: time.sleep(0.1)))
    task = str(write_task(tmp_path / "mine.py"))
    words = ["compare", "--workload", task, "--methods", "ist", "--nodes", "1", "--steps", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--slurm", "executor=local", "--slurm", "cpus=1", "--out", str(tmp_path)])
    said = capsys.readouterr()
    assert (ended.value.code, "ist" in said.out) == (0, True)
    assert "[1/1] mine-ist-n1-s0" in said.err
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["status"] == "done"


def test_a_missing_submitit_is_one_line_with_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    line = r"^--slurm needs submitit, which is not installed: pip install submitit$"
    with pytest.raises(UserError, match=line):
        run(REQUESTS, NAMES, tmp_path, DEBUG, print)
