"""A cluster from up to down on moto's server, and each step refused: whatever fails, `down` leaves nothing."""

import logging
import sys

import fake_aws
import moto_aws
import msgspec
import pytest
from moto_aws import HERE, IMAGE, REGION, as_moto_can, inventory

from istbench.aws import errands, session
from istbench.aws.commands import errand
from istbench.aws.keeper import keep
from istbench.aws.lifecycle import Plan, down, fetch, stand, up
from istbench.aws.local_files import recall
from istbench.aws.spec import preset
from istbench.aws.stack import find_stack
from istbench.aws.survey import survey
from istbench.aws.template import template
from istbench.errors import RunFailed, UserError

pytest.importorskip("moto.server")

NAME = "2xm5-2xlarge"
PLAN = Plan(spec=msgspec.structs.replace(preset("2xm5.2xlarge"), image=IMAGE), max_hours=1.0, per_hour=0.79)
LIFE = {
    "up": ["DescribeStacks", "CreateStack", "DescribeStacks", "DescribeInstances", "DescribeInstanceInformation"],
    "fetch": ["DescribeStacks", "ListObjectsV2", "HeadObject", "GetObject"],
    "down": [
        "DescribeStacks", "DescribeInstances", "ListObjectsV2", "TerminateInstances", "DescribeInstances",
        "ListObjectsV2", "ListObjectsV2", "DeleteObjects", "DeleteStack", "DescribeStacks", "DescribeInstances",
        "DescribeVolumes", "GetResources",
    ],
}  # fmt: skip
"""What AWS is asked in a cluster's life with one file of results."""
STEPS = list(enumerate(operation for part in LIFE.values() for operation in part))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        fake_aws.nobodys_credentials(patch, tmp_path_factory.mktemp("nobody"))
        patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
        wire, server = moto_aws.serve(patch)
        yield wire
        server.stop()
        session._client.cache_clear()


@pytest.fixture
def moto(server, monkeypatch, tmp_path):
    """moto's server without any cluster; nothing of one is left when the test has ended."""
    fake_aws.nobodys_credentials(monkeypatch, tmp_path)
    server.asked.clear()
    server.refused = None
    yield server
    left = inventory()
    server.forget_the_ended()
    if left != server.clean:
        server.forget()
    assert left == server.clean


@pytest.fixture
def said():
    return []


def live(moto, out, said):
    """A cluster's life; returns what was asked in each part of it."""
    asked = {}
    for part, step in {
        "up": lambda: up(HERE, PLAN, said.append),
        "fetch": lambda: moto.leave_results() and fetch(HERE, NAME, out, said.append),
        "down": lambda: down(HERE, NAME, discard=False, say=said.append),
    }.items():
        before = len(moto.asked)
        step()
        asked[part] = moto.asked[before:]
    return asked


def test_a_clusters_life_leaves_nothing_but_the_results(moto, said, tmp_path):
    assert live(moto, tmp_path / "out", said) == LIFE
    assert (tmp_path / "out/a/run.json").read_bytes() == b"{}"
    assert not down(HERE, NAME, discard=False, say=said.append)
    assert (recall().clusters, list(map(str, recall().regions))) == ({}, [REGION])


def test_a_standing_cluster_is_surveyed_and_gone_on_with_and_its_results_are_kept(moto, said):
    up(HERE, PLAN, said.append)
    made = inventory() - moto.clean
    assert (made["machine"], made["disk"], made["bucket"], made["role"], made["profile"]) == (2, 2, 1, 2, 1)
    up(HERE, PLAN, said.append)
    assert moto.asked.count("CreateStack") == 1
    (region,) = survey([REGION])
    assert (region.clusters, region.left_over, region.problem) == ([NAME], {}, "")
    assert [machine.kind for machine in region.machines[NAME]] == ["m5.2xlarge"] * 2
    moto.leave_results()
    with pytest.raises(UserError, match="1 files of cluster .* were not fetched, such as a/run.json: .*--discard"):
        down(HERE, NAME, discard=False, say=said.append)
    assert inventory() - moto.clean == made
    assert down(HERE, NAME, discard=True, say=said.append)
    (region,) = survey([REGION])
    assert (region.clusters, region.problem) == ([], "")


def test_a_run_goes_out_and_comes_back_through_the_bucket(moto, said, monkeypatch, tmp_path, capsys):
    up(HERE, PLAN, said.append)
    place = stand(HERE, NAME)
    spec = msgspec.structs.replace(PLAN.spec, requirement="istbench==0.1.0")
    (tmp_path / "mine.toml").write_text("a = 1")
    asked = errand(["run", "--cluster", str(tmp_path / "mine.toml")])
    run = errands.start(place, spec, asked, tmp_path / "none", 15, said.append)
    script = "import os, sys, pathlib\nhere = pathlib.Path(sys.argv[2], sys.argv[1])\n"
    script += "here.write_text(os.environ['ISTBENCH_SECRET'])\nprint('said')"
    for rank in (0, 1):
        folders = {name: tmp_path / f"machine{rank}" / name for name in ("results", "files", "data", "logs")}
        words = [sys.executable, "-c", script, str(rank), str(folders["results"])]
        assert keep(moto.machines_s3, place.bucket, run, rank, words, **folders) == 0
        assert (folders["files"] / "mine.toml").read_text() == "a = 1"
    assert errands.follow(place, run) == 0
    assert capsys.readouterr().out == "said\n"
    assert fetch(HERE, NAME, tmp_path / "out", said.append) == 2
    assert fetch(HERE, NAME, tmp_path / "out", said.append) == 0
    secrets = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert sorted(secrets) == ["0", "1"]
    assert secrets["0"] == secrets["1"]
    assert len(secrets["0"]) == 64
    assert down(HERE, NAME, discard=False, say=said.append)


@pytest.mark.parametrize(("place", "operation"), STEPS)
def test_whatever_aws_refuses_in_a_clusters_life_down_leaves_nothing(moto, said, tmp_path, place, operation):
    moto.refused = place
    with pytest.raises(RunFailed, match="you may not .*docs/aws.md lists the permissions"):
        live(moto, tmp_path / "out", said)
    assert (len(moto.asked), moto.asked[-1]) == (place + 1, operation)
    moto.refused = None
    down(HERE, NAME, discard=True, say=said.append)
    assert recall().clusters == {}


@pytest.mark.parametrize("name", as_moto_can(template(PLAN.spec))["Resources"])
def test_whatever_resource_fails_down_takes_back_what_was_made_before(moto, said, monkeypatch, name):
    moto_aws.refuse_resource(monkeypatch, name)
    with pytest.raises(RunFailed, match=f"to make cluster {NAME} in {REGION}, and refused: {name}: no"):
        up(HERE, PLAN, said.append)
    assert find_stack(HERE, NAME).status == "CREATE_IN_PROGRESS"
    if moto.leave_results():
        with pytest.raises(UserError, match="were not fetched"):
            down(HERE, NAME, discard=False, say=said.append)
    assert down(HERE, NAME, discard=True, say=said.append)
