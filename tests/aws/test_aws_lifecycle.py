"""A cluster from up to down, and what fails in between, on a small AWS in memory."""

import sys

import fake_aws
import msgspec
import pytest

from istbench.aws import errands, lifecycle, waiting, wheel
from istbench.aws.commands import errand
from istbench.aws.keeper import keep
from istbench.aws.lifecycle import Plan, down, fetch, stand, up
from istbench.aws.local_files import memory_file, recall
from istbench.aws.session import Aws, connect
from istbench.aws.spec import PipArgument, preset
from istbench.aws.survey import survey
from istbench.aws.transfer import Pushed
from istbench.aws.wheel import Package, package
from istbench.errors import RunFailed, UserError

NAME = "2xm5-2xlarge"
PLAN = Plan(spec=preset("2xm5.2xlarge"), max_hours=1.0, per_hour=0.79)
HERE = Aws("us-east-1")
RUN = errand(["run", "--method", "ist", "--workload", "toy"])


@pytest.fixture
def said():
    return []


@pytest.fixture
def cluster(aws, said, monkeypatch, tmp_path):
    """A cluster that stands, and whose machines do what they are told: the run is a little Python."""
    up(HERE, PLAN, said.append)
    monkeypatch.setattr(
        errands, "package", lambda spec, scratch: Package(wheel=None, requirement="istbench==0.1.0")
    )
    return aws


def do_its_work(aws, tmp_path, monkeypatch, script="print('done')", ranks=(0, 1)):
    """Have the run's keepers work when the run is followed for the first time."""
    place = stand(HERE, NAME)
    todo = list(ranks)

    def work(_):
        while todo:
            rank, run = todo.pop(0), max(key.split("/")[1] for key in aws.buckets[place.bucket] if "runs/2" in key)
            folder = tmp_path / f"machine{rank}"
            folders = {name: folder / name for name in ("results", "files", "data", "logs")}
            words = [sys.executable, "-c", script, str(rank), str(folders["results"])]
            keep(place.s3, place.bucket, run, rank, words, **folders)

    monkeypatch.setattr(errands, "pause", work)
    return place


def start_and_follow(place, tmp_path, said):
    run = errands.start(place, PLAN.spec, RUN, tmp_path / "out", 15, said.append)
    place.s3.put_object(Bucket=place.bucket, Key=f"runs/{run}/files/nothing", Body=b"")
    return errands.follow(place, run)


def test_up_then_down_leaves_nothing_and_down_can_be_repeated(aws, said):
    up(HERE, PLAN, said.append)
    (stack,) = aws.stacks.values()
    parameters = {part["ParameterKey"]: part["ParameterValue"] for part in stack["Parameters"]}
    assert parameters["MaxMinutes"] == "60"
    assert recall().clusters[NAME].ends.startswith(parameters["EndsAt"][:10])
    up(HERE, PLAN, said.append)  # again: it goes on with what is there
    assert aws.times("CreateStack") == 1
    assert down(HERE, NAME, discard=False, say=said.append)
    assert aws.alive() == []
    assert not down(HERE, NAME, discard=False, say=said.append)
    assert (recall().clusters, list(map(str, recall().regions))) == ({}, ["us-east-1"])


@pytest.mark.parametrize(
    ("name", "why", "way_out"),
    [
        (
            "Node0",
            "We currently do not have sufficient m5.2xlarge capacity (InsufficientInstanceCapacity)",
            "another",
        ),
        ("Node1", "You have requested more vCPU capacity than your current vCPU limit", "Service Quotas"),
        ("Node0", "m5.2xlarge is not supported in your requested Availability Zone", "`zone` in the spec"),
        ("Role", "User is not authorized to perform: iam:CreateRole", "docs/aws.md"),
        ("Network", "Something else", "mend the spec"),
    ],
)
def test_a_stack_that_fails_says_why_and_the_way_out_and_leaves_nothing(aws, said, name, why, way_out):
    aws.broken = {name: why}
    with pytest.raises(RunFailed, match=f"{name}: .*{way_out}"):
        up(HERE, PLAN, said.append)
    assert aws.alive() == []
    aws.broken = {}
    up(HERE, PLAN, said.append)


@pytest.mark.parametrize("operation", ["CreateStack", "DescribeStacks", "DescribeInstances"])
@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        ("ExpiredToken", "The security token is expired", "credentials have expired or are wrong .*aws sso login"),
        ("AccessDenied", "not authorized to perform: x", "you may not .*docs/aws.md"),
        ("Throttling", "Rate exceeded", "refused: Rate exceeded"),
    ],
)
def test_what_aws_refuses_is_said_in_one_line_and_down_ends_what_there_is(
    aws, said, operation, code, text, message
):
    aws.refuse = {operation: (code, text)}
    with pytest.raises(RunFailed, match=message) as failed:
        up(HERE, PLAN, said.append)
    assert len(str(failed.value).splitlines()) == 1
    aws.refuse = {}
    down(HERE, NAME, discard=False, say=said.append)
    assert aws.alive() == []


def test_no_region_no_credentials_and_a_machine_that_stays_away(aws, said, monkeypatch):
    aws.offline = (1,)
    with pytest.raises(RunFailed, match=r"machine 1 \(i-00000001\): not all machines came online"):
        up(HERE, PLAN, said.append)
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(UserError, match="no region: give --region"):
        connect(None)
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError

    def nobody(*_):
        raise NoCredentialsError

    monkeypatch.setattr(aws, "call", nobody)
    with pytest.raises(UserError, match="no credentials of AWS: sign in"):
        up(HERE, PLAN, said.append)

    def unreachable(*_):
        raise EndpointConnectionError(endpoint_url="somewhere")

    monkeypatch.setattr(aws, "call", unreachable)
    with pytest.raises(RunFailed, match="is not reached"):
        up(HERE, PLAN, said.append)


def test_ctrl_c_during_up_says_what_there_is_and_how_to_end_it(aws, said, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting, "pause", interrupt)
    with pytest.raises(KeyboardInterrupt):
        up(HERE, PLAN, said.append)
    assert f"`istbench aws down --name {NAME}` ends it" in said[-1]
    assert "$0.79 an hour" in said[-1]
    down(HERE, NAME, discard=False, say=said.append)
    assert aws.alive() == []


def test_a_run_brings_back_results_and_down_waits_for_them_to_be_fetched(
    cluster, said, monkeypatch, tmp_path, capsys
):
    script = (
        "import sys, pathlib\nif sys.argv[1] == '0': pathlib.Path(sys.argv[2], 'a').write_text('1')\nprint('said')"
    )
    place = do_its_work(cluster, tmp_path, monkeypatch, script)
    assert start_and_follow(place, tmp_path, said) == 0
    assert capsys.readouterr().out == "said\n"
    started = [lines for rank in (0, 1) for lines in cluster.lines(rank) if "--unit=istbench-run" in lines]
    assert ["--node-rank 0" in started[0], "--node-rank 1" in started[1]] == [True, True]
    assert f"--rdzv-endpoint {place.machines[0].address}:29500" in started[1]
    with pytest.raises(UserError, match="1 files of cluster 2xm5-2xlarge were not fetched, such as a: .*--discard"):
        down(HERE, NAME, discard=False, say=said.append)
    assert len(cluster.alive()) == 4
    out = tmp_path / "fetched"
    assert fetch(HERE, NAME, out, said.append) == 1
    assert (out / "a").read_text() == "1"
    gets = cluster.times("GetObject")
    assert fetch(HERE, NAME, out, said.append) == 0
    assert cluster.times("GetObject") == gets
    (out / "a").unlink()  # what was lost here comes again
    fetch(HERE, NAME, out, said.append)
    assert (out / "a").exists()
    assert down(HERE, NAME, discard=False, say=said.append)
    assert cluster.alive() == []


def test_a_run_that_fails_ends_with_its_status_and_names_the_machine(cluster, said, monkeypatch, tmp_path, capsys):
    script = "import sys\nif sys.argv[1] == '1': sys.exit('no memory')"
    place = do_its_work(cluster, tmp_path, monkeypatch, script)
    assert start_and_follow(place, tmp_path, said) == 1
    assert "machine 1 (i-00000001): no memory" in capsys.readouterr().err


def test_earlier_results_go_along_to_a_new_cluster(cluster, said, monkeypatch, tmp_path):
    (tmp_path / "out/runs/x").mkdir(parents=True)
    (tmp_path / "out/runs/x/run.json").write_text("{}")
    place = do_its_work(cluster, tmp_path, monkeypatch)
    start_and_follow(place, tmp_path, said)
    for rank in (0, 1):
        assert (tmp_path / f"machine{rank}/results/runs/x/run.json").read_text() == "{}"


def test_machines_that_linger_are_kept_while_a_command_is_prepared(cluster, said, tmp_path):
    place, told = stand(HERE, NAME), {0: [], 1: []}
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips/a").write_text("1")

    def shell(rank, lines):
        brought = any(key.startswith("data/") for key in cluster.buckets[place.bucket])
        told[rank].append((lines, brought))
        return 0, "", ""

    cluster.shell = shell
    asked = errand([*RUN.words, "--data", str(tmp_path / "clips")])
    errands.start(place, PLAN.spec, asked, tmp_path / "out", 15, said.append)
    for rank in (0, 1):
        parts = ("--on-active=45m", "pip install", "--on-active=135m", "--unit=istbench-run")
        assert [part in lines for part, (lines, _) in zip(parts, told[rank], strict=True)] == [True] * 4
        assert [brought for _, brought in told[rank]] == [False, False, False, True]


def test_the_same_command_follows_a_run_and_another_is_refused(cluster, said, monkeypatch, tmp_path):
    place = do_its_work(cluster, tmp_path, monkeypatch)
    errands.start(place, PLAN.spec, RUN, tmp_path / "out", 15, said.append)
    cluster.shell = lambda rank, lines: (0, "active\n" if "is-active" in lines else "", "")
    told = len(cluster.told)
    errands.start(place, PLAN.spec, RUN, tmp_path / "out", 15, said.append)
    assert said[-1] == "it is running already, and is followed"
    assert len(cluster.told) == told + 2  # asked, and nothing started
    with pytest.raises(UserError, match="is at work on `run --method ist --workload toy`"):
        errands.start(place, PLAN.spec, errand(["doctor"]), tmp_path / "out", 15, said.append)


def test_a_machine_that_is_taken_back_ends_the_run_on_the_others(cluster, said, monkeypatch, tmp_path):
    place = stand(HERE, NAME)
    run = errands.start(place, PLAN.spec, RUN, tmp_path / "out", 15, said.append)
    cluster.machines[cluster.machine(1)]["State"] = {"Name": "terminated"}
    monkeypatch.setattr(errands, "pause", lambda _: None)
    with pytest.raises(RunFailed, match=r"machine 1 \(i-00000001\): ended before the run"):
        errands.follow(place, run)
    assert "systemctl stop istbench-run" in cluster.lines(0)[-1]
    for again in (lambda: up(HERE, PLAN, said.append), lambda: stand(HERE, NAME)):
        with pytest.raises(RunFailed, match="has 1 of its 2 machines left: .*fetch.*down --name 2xm5-2xlarge.*up"):
            again()


@pytest.mark.parametrize("state", ["terminated", "shutting-down"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_cluster_that_lost_a_machine_stands_no_more(cluster, rank, state):
    cluster.machines[cluster.machine(rank)]["State"] = {"Name": state}
    with pytest.raises(RunFailed, match="has 1 of its 2 machines left"):
        stand(HERE, NAME)


@pytest.mark.parametrize("step", ["pip install", "--unit=istbench-run"])
def test_a_machine_that_cannot_be_set_up_is_named_and_none_is_left_at_work(cluster, said, tmp_path, step):
    def shell(rank, lines):
        return (
            (1, "", "no space left\nfailed to run commands: exit status 1")
            if rank == 1 and step in lines
            else (0, "", "")
        )

    cluster.shell = shell
    with pytest.raises(RunFailed, match=r"machine 1 \(i-00000001\): .* failed: no space left"):
        errands.start(stand(HERE, NAME), PLAN.spec, RUN, tmp_path / "out", 15, said.append)
    if step == "--unit=istbench-run":
        assert "systemctl stop istbench-run" in cluster.lines(0)[-1]


def test_ctrl_c_ends_the_run_on_all_machines_and_says_which_kept_silent(cluster, said, tmp_path):
    place = stand(HERE, NAME)
    run = errands.start(place, PLAN.spec, RUN, tmp_path / "out", 15, said.append)
    place.s3.put_object(Bucket=place.bucket, Key=f"runs/{run}/0.ended", Body=b'{"status": 130}')
    errands.stop(place, run, said.append)
    assert all("systemctl stop istbench-run" in cluster.lines(rank)[-1] for rank in (0, 1))
    assert said[-1] == "machine 1 (i-00000001): nothing was heard of its end"


def test_only_what_changed_is_pushed_and_what_was_deleted_goes(cluster, tmp_path):
    place = stand(HERE, NAME)
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("run.json", "events.jsonl", "old"):
        (folder / name).write_text(name)
    pushed = Pushed(place.s3, place.bucket, "results/", folder)
    assert pushed.push(everything=True) == 3
    (folder / "events.jsonl").write_text("more than before")
    (folder / "old").unlink()
    assert (pushed.push(), pushed.push()) == (2, 0)
    there = {key: content for key, content in cluster.buckets[place.bucket].items() if key.startswith("results/")}
    assert there == {"results/run.json": b"run.json", "results/events.jsonl": b"more than before"}


def test_a_stack_that_cannot_be_deleted_is_named_and_tried_again(cluster, said):
    cluster.undeletable = "Group"
    with pytest.raises(
        RunFailed, match="was not deleted: Group: it is not empty, or in use; run `istbench aws down`"
    ):
        down(HERE, NAME, discard=False, say=said.append)
    assert NAME in recall().clusters
    with pytest.raises(RunFailed, match="is DELETE_FAILED: run `istbench aws down"):
        up(HERE, PLAN, said.append)
    cluster.undeletable = ""
    assert down(HERE, NAME, discard=False, say=said.append)
    assert cluster.alive() == []


def test_results_that_came_after_the_fetch_are_not_thrown_away(cluster, said, monkeypatch, tmp_path):
    bucket = stand(HERE, NAME).bucket
    ending = lifecycle.end_machines

    def end(aws, machines):
        ending(aws, machines)
        cluster.buckets[bucket]["results/last"] = b"1"

    monkeypatch.setattr(lifecycle, "end_machines", end)
    with pytest.raises(UserError, match="such as last"):
        down(HERE, NAME, discard=False, say=said.append)
    fetch(HERE, NAME, tmp_path / "out", said.append)
    assert down(HERE, NAME, discard=False, say=said.append)
    assert (tmp_path / "out/last").read_bytes() == b"1"


def test_the_same_name_in_another_region_is_refused(cluster, said):
    with pytest.raises(UserError, match="cluster 2xm5-2xlarge is in us-east-1: .*another --name"):
        up(Aws("eu-west-1"), PLAN, said.append)


def test_a_survey_finds_orphans_in_every_region(cluster):
    tags = [{"Key": "istbench:cluster", "Value": "lost"}]
    cluster.add_machine("eu-west-1", "lost", 0, tags)
    cluster.volumes["v"] = {"VolumeId": "vol-1", "Region": "eu-west-1", "Tags": tags}
    west, east = survey(["eu-west-1", "us-east-1"])
    assert (east.clusters, east.left_over, len(east.machines[NAME])) == ([NAME], {}, 2)
    assert west.left_over == {"lost": ["instance i-00000002 (running)", "volume vol-1"]}
    down(Aws("eu-west-1"), "lost", discard=False, say=lambda _: None)
    assert cluster.machines["i-00000002"]["State"]["Name"] == "terminated"


def test_a_region_that_cannot_be_looked_at_is_a_problem_of_its_own(aws):
    aws.refuse = {"DescribeStacks": ("AccessDenied", "no")}
    (region,) = survey(["us-east-1"])
    assert "you may not" in region.problem


def test_a_damaged_memory_is_said_with_the_way_out(aws):
    memory_file().parent.mkdir(parents=True)
    memory_file().write_text('{"clusters": {"a": 1}}')
    with pytest.raises(UserError, match="aws.json: clusters.* must be a table.*`istbench aws status`"):
        recall()


def test_a_key_that_would_lie_outside_is_refused(cluster, said, tmp_path):
    cluster.buckets[stand(HERE, NAME).bucket]["results/../../x"] = b"1"
    with pytest.raises(RunFailed, match="has an object of the name '../../x'"):
        fetch(HERE, NAME, tmp_path / "out", said.append)
    assert not (tmp_path.parent / "x").exists()


def test_the_spec_may_say_what_pip_installs(monkeypatch, tmp_path):
    spec = msgspec.structs.replace(PLAN.spec, requirement=PipArgument("istbench==9"))
    assert package(spec, tmp_path) == Package(wheel=None, requirement="istbench==9")
    monkeypatch.setattr(wheel.istbench, "__file__", str(tmp_path / "site-packages/istbench/__init__.py"))
    assert package(PLAN.spec, tmp_path).requirement == f"istbench[speech,aws]=={wheel.istbench.__version__}"


def test_a_fake_that_is_asked_wrongly_says_so(aws):
    with pytest.raises(AssertionError, match="Unknown parameter"):
        HERE.client("ec2").terminate_instances(Wrong=1)
    aws.refuse = {"DescribeRegions": ("No", "")}
    with pytest.raises(type(fake_aws.refusal("x", "y"))):
        HERE.client("ec2").describe_regions()
