"""A checkpoint in a bucket: whole at every moment, however fast the run publishes newer ones."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from istbench.launch.aws.transfer import Pushed

CHECKPOINT = "runs/x/checkpoint"


class Bucket:
    """A client of S3 with one bucket.

    Attributes:
        objects: content by key. meanwhile: what happens while a file is brought.
    """

    def __init__(self):
        self.objects = {}
        self.meanwhile = lambda: None

    def upload_file(self, path, bucket, key):
        content = Path(path).read_bytes()
        self.meanwhile()
        self.objects[key] = content
        self.step()

    def delete_object(self, Bucket, Key):  # noqa: N803
        self.objects.pop(Key, None)
        self.step()

    def step(self):
        """The step of the checkpoint that counts, all of which is there; 0 where there is none."""
        latest = self.objects.get(f"results/{CHECKPOINT}/latest.json")
        if latest is None:
            return 0
        step = json.loads(latest)["step"]
        for rank in (0, 1):
            assert self.objects[f"results/{CHECKPOINT}/{step}/rank-{rank}.json"] == str(step).encode()
        return step

    def steps(self):
        """Those that it has any files of."""
        return {key.split("/")[4] for key in self.objects if key.endswith("rank-0.json")}


class Run:
    """One that trains, and writes checkpoints as a run does."""

    def __init__(self, results):
        self.directory = results / CHECKPOINT
        self.step = 0

    def write(self):
        self.step += 100
        for rank in (0, 1):
            file = self.directory / str(self.step) / f"rank-{rank}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(self.step))

    def publish(self):
        (self.directory / "new").write_text(json.dumps({"step": self.step}))
        (self.directory / "new").replace(self.directory / "latest.json")
        for folder in self.directory.iterdir():
            if folder.is_dir() and folder.name != str(self.step):
                shutil.rmtree(folder)

    def go_on(self):
        self.write()
        self.publish()


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def pushed(bucket, results):
    return Pushed(bucket, "kept", "results/", results)


def test_a_run_that_publishes_faster_than_files_go_up_leaves_whole_checkpoints(results, bucket, pushed):
    run = Run(results)
    run.go_on()
    bucket.meanwhile = run.go_on
    for _ in range(3):
        step = run.step
        pushed.push()
        assert (bucket.step(), bucket.steps()) == (step, {str(step)})
    assert [path.name for path in results.iterdir()] == ["runs"]


def test_without_hard_links_the_whole_one_stays_until_there_is_another(results, bucket, pushed, monkeypatch):
    def link(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    run = Run(results)
    run.go_on()
    pushed.push()
    bucket.meanwhile = run.go_on
    run.go_on()
    pushed.push()
    assert bucket.step() == 100
    bucket.meanwhile = lambda: None
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (run.step, {str(run.step)})


def test_a_checkpoint_counts_once_it_is_published_and_goes_with_the_runs(results, bucket, pushed):
    run = Run(results)
    run.write()
    assert pushed.push() == 0
    run.publish()
    run.write()
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (100, {"100"})
    assert pushed.push() == 0
    shutil.rmtree(run.directory)
    pushed.push()
    assert bucket.objects == {}


def test_what_failed_to_go_up_is_not_left_there_once_it_is_no_more(results, bucket, pushed):
    run = Run(results)
    run.go_on()

    def fail():
        if bucket.objects:
            raise ConnectionError

    bucket.meanwhile = fail
    with pytest.raises(ConnectionError):
        pushed.push()
    assert bucket.step() == 0
    bucket.meanwhile = lambda: None
    run.go_on()
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (200, {"200"})
