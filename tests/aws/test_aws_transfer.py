"""A checkpoint in a bucket: whole at every moment, however fast the run publishes newer ones."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from published_steps import publish_step, step_whole, write_step

from istbench.aws.transfer import Pushed, pull

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
        self.put_object(Bucket=bucket, Key=key, Body=content)

    def put_object(self, Bucket, Key, Body):  # noqa: N803
        self.objects[Key] = Body
        self.step()

    def delete_object(self, Bucket, Key):  # noqa: N803
        self.objects.pop(Key, None)
        self.step()

    def download_file(self, bucket, key, path):
        Path(path).write_bytes(self.objects[key])

    def get_paginator(self, _name):
        return self

    def paginate(self, Bucket, Prefix):  # noqa: N803
        found = {key: content for key, content in self.objects.items() if key.startswith(Prefix)}
        return [{"Contents": [{"Key": key, "ETag": hashlib.md5(found[key]).hexdigest()} for key in found]}]

    def step(self):
        """The step of the checkpoint that counts, all of which is there; 0 where there is none."""
        latest = self.objects.get(f"results/{CHECKPOINT}/latest.json")
        if latest is None:
            return 0
        step = json.loads(latest)["step"]
        folder = f"results/{CHECKPOINT}/{step}/"
        for name, listed in json.loads(self.objects[f"{folder}manifest.json"])["contents"]["files"].items():
            assert hashlib.sha256(self.objects[folder + name]).hexdigest() == listed["sha256"]
        return step

    def steps(self):
        """Those that it has any files of."""
        return {int(key.split("/")[4]) for key in self.objects if key.endswith("rank-0.json")}


class Run:
    """One that trains, and writes checkpoints as a run does."""

    def __init__(self, results):
        self.directory = results / CHECKPOINT
        self.step = 0

    def write(self):
        self.step += 100
        write_step(self.directory, self.step, {f"rank-{rank}.json": b"%d" % self.step for rank in (0, 1)})

    def publish(self):
        publish_step(self.directory, self.step)

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


def test_a_run_that_publishes_meanwhile_leaves_whole_checkpoints(results, bucket, pushed):
    run = Run(results)
    run.go_on()
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (100, {100})
    run.go_on()
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (200, {100, 200})
    bucket.meanwhile = once(run.go_on)
    run.go_on()
    pushed.push()  # 300, while 400 is published and 200 is deleted
    assert (bucket.step(), bucket.steps()) == (300, {300})
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (400, {300, 400})
    assert [path.name for path in results.iterdir()] == ["runs"]


def once(act):
    acts = [act]
    return lambda: acts and acts.pop()()


def test_a_step_that_is_deleted_on_its_way_is_given_up_for_the_next(results, bucket, pushed):
    run = Run(results)
    run.go_on()
    pushed.push()
    run.go_on()
    bucket.meanwhile = once(lambda: [run.go_on(), run.go_on()])
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (400, {400})


def test_a_run_that_is_always_faster_leaves_the_checkpoint_of_before(results, bucket, pushed):
    run = Run(results)
    run.go_on()
    pushed.push()
    bucket.meanwhile = lambda: [run.go_on(), run.go_on()]
    run.go_on()
    pushed.push()
    assert bucket.step() == 100
    bucket.meanwhile = lambda: None
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (run.step, {run.step})


def damage(path):
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def test_a_damaged_step_is_not_brought_and_the_one_before_is(results, bucket, pushed):
    run = Run(results)
    run.go_on()
    run.go_on()
    damage(run.directory / "200" / "rank-1.json")
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (100, {100})
    assert pushed.push() == 0
    damage(run.directory / "100" / "rank-1.json")
    run.go_on()
    damage(run.directory / "300" / "rank-1.json")
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (100, {100})


def test_what_is_fetched_has_no_steps_of_another_run(results, bucket, pushed, tmp_path):
    run, here = Run(results), tmp_path / "here"
    for _ in range(3):
        run.go_on()
        pushed.push()
        pull(bucket, "kept", "results/", here, {})
    assert sorted(path.name for path in (here / CHECKPOINT).iterdir()) == ["200", "300", "latest.json"]
    shutil.rmtree(run.directory)
    run.step = 0
    run.go_on()
    pushed.push()
    pull(bucket, "kept", "results/", here, {})
    assert sorted(path.name for path in (here / CHECKPOINT).iterdir()) == ["100", "latest.json"]
    assert step_whole(here / CHECKPOINT) == 100


def test_what_is_fetched_damaged_takes_nothing_away(results, bucket, pushed, tmp_path):
    run, here = Run(results), tmp_path / "here"
    run.go_on()
    pushed.push()
    pull(bucket, "kept", "results/", here, {})
    for _ in range(2):
        run.go_on()
        pushed.push()
    del bucket.objects[f"results/{CHECKPOINT}/300/rank-1.json"]
    del bucket.objects[f"results/{CHECKPOINT}/200/rank-1.json"]
    pull(bucket, "kept", "results/", here, {})
    assert step_whole(here / CHECKPOINT) == 100


def test_a_checkpoint_counts_once_it_is_published_and_goes_with_the_runs(results, bucket, pushed):
    run = Run(results)
    run.write()
    assert pushed.push() == 0
    run.publish()
    run.write()
    pushed.push()
    assert (bucket.step(), bucket.steps()) == (100, {100})
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
    assert (bucket.step(), bucket.steps()) == (200, {200})
