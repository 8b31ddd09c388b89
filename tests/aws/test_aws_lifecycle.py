"""A cluster from up to down, and failures in between, on a small AWS in memory."""

import fcntl
import json
import os
import shutil
import stat
import subprocess
from types import SimpleNamespace

import fake_aws
import msgspec
import pytest
from fake_runs import RESULT, header

from istbench.aws import session
from istbench.aws.lifecycle import ClusterRequest, down, up
from istbench.aws.local_files import LocalFiles, records
from istbench.aws.session import Aws, connect
from istbench.aws.spec import preset
from istbench.aws.survey import survey
from istbench.base.errors import RunFailed, UserError
from istbench.launch.hosts.names import parse_hosts
from istbench.results.events import Stop
from istbench.results.store import RunDirectory

NAME = "2xm5-2xlarge"
HERE = Aws("us-east-1")
FIRST, SECOND = f"{NAME}-0", f"{NAME}-1"


def request(network="198.51.100.7/32", name="2xm5.2xlarge"):
    return ClusterRequest(spec=preset(name), max_hours=1.0, per_hour=0.79, network=network)


@pytest.fixture
def said():
    return []


@pytest.fixture
def cluster(aws, said):
    """A cluster that is up."""
    up(HERE, request(), said.append)
    return aws


@pytest.fixture
def end(said, tmp_path):
    """Takes the cluster down, with results in `out`."""
    return lambda discard=False, aws=HERE, name=NAME: down(
        aws, name, discard=discard, out=tmp_path / "out", say=said.append
    )


def write_run(folder, **changed):
    """A run directory that has ended in `folder`, a results directory."""
    head = header("ist", **{"result": RESULT, **changed})
    run = RunDirectory.of(folder, head["cell"])
    run.create(head)
    run.append(Stop(status="interrupted", step=1))
    return run


def test_up_then_down_leaves_nothing_and_down_can_be_repeated(aws, said, end):
    up(HERE, request(), said.append)
    (stack,) = aws.stacks.values()
    parameters = {part["ParameterKey"]: part["ParameterValue"] for part in stack["Parameters"]}
    assert (parameters["MaxMinutes"], parameters["From"]) == ("60", "198.51.100.7/32")
    assert records()[NAME].ends.startswith(parameters["EndsAt"][:10])
    up(HERE, request(), said.append)  # it continues with the cluster that exists
    assert aws.times("CreateStack") == 1
    assert end()
    assert aws.alive() == []
    assert not end()
    assert (records(), LocalFiles(NAME).folder.exists()) == ({}, False)


def test_up_writes_keys_hosts_and_an_ssh_configuration_that_knows_the_machines(cluster):
    files = LocalFiles(NAME)
    assert [host.name for host in parse_hosts(str(files.hosts))] == [FIRST, SECOND]
    asked = ["/usr/bin/ssh", "-F", files.ssh_config, "-G", SECOND]
    options = dict(line.split(" ", 1) for line in subprocess.check_output(asked, text=True).splitlines())
    assert (options["hostname"], options["user"], options["hostkeyalias"]) == (
        "203.0.113.11", "istbench", f"istbench-{NAME}",
    )  # fmt: skip
    assert (options["identityfile"], options["identitiesonly"]) == (str(files.key), "yes")
    assert (options["stricthostkeychecking"], options["userknownhostsfile"]) == ("true", str(files.known_hosts))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (files.key, files.folder)] == [0o600, 0o700]
    (stack,) = cluster.stacks.values()
    parameters = {part["ParameterKey"]: part["ParameterValue"] for part in stack["Parameters"]}
    public = files.key.with_name("key.pub").read_text()
    assert public.startswith(parameters["UserKey"])
    # No private key of this computer is in the request, and the host's is on this computer no longer.
    assert files.key.read_text().splitlines()[1] not in json.dumps(stack["Parameters"])
    assert sorted(path.name for path in files.folder.iterdir()) == [
        "cluster.json", "hosts", "key", "key.pub", "known_hosts", "ssh_config",
    ]  # fmt: skip


def test_through_session_manager_ssh_goes_by_instance_ids_and_no_address_may_connect(aws, said):
    up(HERE, request(network=None), said.append)
    files = LocalFiles(NAME)
    asked = ["/usr/bin/ssh", "-F", files.ssh_config, "-G", FIRST]
    options = dict(line.split(" ", 1) for line in subprocess.check_output(asked, text=True).splitlines())
    assert options["hostname"] == aws.machine(0)
    assert options["proxycommand"] == (
        "aws ssm start-session --target %h --document-name AWS-StartSSHSession --parameters portNumber=%p "
        "--region us-east-1"
    )
    assert list(aws.groups.values()) == [[]]
    with pytest.raises(UserError, match="exists, and it was created with --ssm: `istbench aws down --name"):
        up(HERE, request(), said.append)


def test_a_cluster_lets_in_the_present_address_in_place_of_the_one_before(cluster, said):
    up(HERE, request(network="198.51.100.0/24"), said.append)
    assert list(cluster.groups.values()) == [["198.51.100.0/24"]]
    assert "the machines now let in 198.51.100.0/24, and no other address" in said
    changes = cluster.times("ModifySecurityGroupRules")
    up(HERE, request(network="198.51.100.0/24"), said.append)
    assert cluster.times("ModifySecurityGroupRules") == changes


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
        ("GuardRole", "User is not authorized to perform: iam:CreateRole", "docs/aws.md"),
        ("Network", "Something else", "correct the spec"),
    ],
)
def test_a_stack_that_fails_says_why_and_the_way_out_and_leaves_nothing(aws, said, name, why, way_out):
    aws.broken = {name: why}
    with pytest.raises(RunFailed, match=f"{name}: .*{way_out}"):
        up(HERE, request(), said.append)
    assert aws.alive() == []
    aws.broken = {}
    up(HERE, request(), said.append)


@pytest.mark.parametrize("operation", ["CreateStack", "DescribeStacks", "DescribeInstances"])
@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        ("ExpiredToken", "The security token is expired", "credentials have expired or are wrong .*aws sso login"),
        ("AccessDenied", "not authorized to perform: x", "no permission .*docs/aws.md"),
        ("Throttling", "Rate exceeded", "refused: Rate exceeded"),
    ],
)
def test_a_refusal_of_aws_is_one_line_and_down_ends_the_rest(aws, said, end, operation, code, text, message):
    aws.refuse = {operation: (code, text)}
    with pytest.raises(RunFailed, match=message) as failed:
        up(HERE, request(), said.append)
    assert len(str(failed.value).splitlines()) == 1
    aws.refuse = {}
    end()
    assert aws.alive() == []


def test_a_machine_that_ssh_does_not_reach_is_named_and_down_ends_it(aws, said, end):
    aws.ssh.fail(SECOND, "Connection timed out")
    with pytest.raises(
        RunFailed, match=r"machine 1 \(i-00000001\): ssh did not reach it .* \(Connection timed out"
    ):
        up(HERE, request(), said.append)
    assert not LocalFiles(NAME).hosts.exists()
    end()  # nothing has run there, so it needs no --discard
    assert aws.alive() == []


def test_waiting_ends_after_its_time_however_long_a_look_takes(monkeypatch):
    clock = SimpleNamespace(seconds=0.0, sleep=lambda _: None, monotonic=lambda: clock.seconds)
    monkeypatch.setattr(session, "time", clock)

    def look():
        clock.seconds += 60

    with pytest.raises(RunFailed, match="^it did not come within 15 minutes; run the same command again"):
        session.wait_for(look, 5.0, 900.0, "it did not come")
    assert clock.seconds == 900


def test_a_boot_script_that_fails_is_named_with_its_last_line(aws, said):
    aws.ssh.fail(SECOND, "E: Unable to locate package x", status=1)
    with pytest.raises(RunFailed, match=r"^machine 1 .*: its boot script failed \(E: Unable .*; correct `setup`"):
        up(HERE, request(), said.append)


def test_no_region_and_no_credentials(aws, said, monkeypatch):
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError

    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(UserError, match="no region: give --region"):
        connect(None)

    def nobody(*_):
        raise NoCredentialsError

    monkeypatch.setattr(aws, "call", nobody)
    with pytest.raises(UserError, match="no AWS credentials: sign in, for example"):
        up(HERE, request(), said.append)

    def unreachable(*_):
        raise EndpointConnectionError(endpoint_url="somewhere")

    monkeypatch.setattr(aws, "call", unreachable)
    with pytest.raises(RunFailed, match="does not answer"):
        up(HERE, request(), said.append)


def test_ctrl_c_during_up_says_the_cost_and_how_to_end_it(aws, said, end, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "pause", interrupt)
    with pytest.raises(KeyboardInterrupt):
        up(HERE, request(), said.append)
    assert f"`istbench aws down --name {NAME}` ends it" in said[-1]
    assert "$0.79 an hour" in said[-1]
    end()
    assert aws.alive() == []


def test_down_waits_for_results_that_only_a_machine_has(cluster, end, tmp_path):
    there = write_run(cluster.ssh.home(SECOND) / "results")
    with pytest.raises(
        UserError, match=f"1 runs of cluster .*, such as {SECOND}: ./results/runs/speech-ist-n2-s0: .*--discard"
    ):
        end()
    assert len(cluster.alive()) == 3
    here = write_run(tmp_path / "out" / "some" / "where")
    here.events_jsonl.write_bytes(b"")
    with pytest.raises(UserError, match="1 runs"):  # the header alone is here
        end()
    here.events_jsonl.write_bytes(there.events_jsonl.read_bytes())
    assert end()
    assert cluster.alive() == []


def test_down_knows_a_run_by_its_header_here_and_waits_for_its_weights(cluster, end, tmp_path):
    home = cluster.ssh.home(FIRST)
    there = write_run(home / "results")
    here = RunDirectory.of(tmp_path / "out", there.path.name)
    weights = home / "results/saved/mine-01234567/model.safetensors"
    config = there.header().config
    there.update(config=msgspec.structs.replace(config, save=str(weights.parent)))
    shutil.copytree(there.path, here.path)
    here.update(config=msgspec.structs.replace(config, save=str(tmp_path / "mine")))
    weights.parent.mkdir(parents=True)
    weights.touch()
    with pytest.raises(
        UserError, match=f"1 runs .* {FIRST}: ./results/saved/mine-01234567, the weights of --save: "
    ):
        end()
    weights.unlink()
    assert end()


def test_down_ends_a_cluster_whose_run_went_on_here(cluster, end, tmp_path):
    write_run(cluster.ssh.home(FIRST) / "results", status="interrupted")
    here = write_run(tmp_path / "out")
    here.append(Stop(status="interrupted", step=2))
    assert end()


def test_down_waits_for_a_run_that_trains_unless_told_to_discard_it(cluster, end, tmp_path):
    for folder in (cluster.ssh.home(FIRST) / "results", tmp_path / "out"):
        write_run(folder, status="running", result=None)
    with pytest.raises(UserError, match="1 runs of cluster 2xm5-2xlarge still train or are not in"):
        end()
    assert end(discard=True)
    assert cluster.alive() == []


def test_down_waits_for_cells_of_detach_before_they_have_a_run_directory(cluster, end):
    job = cluster.ssh.home(FIRST) / ".cache/istbench/detached/1"
    job.mkdir(parents=True)
    descriptor = os.open(job, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=f"such as {FIRST}: the cells of --detach"):
            end()
    finally:
        os.close(descriptor)
    assert end()


def test_down_asks_no_machine_that_has_ended_and_refuses_if_one_does_not_answer(cluster, end):
    cluster.ssh.fail(FIRST, "Connection timed out")
    with pytest.raises(UserError, match=r"results there: machine 0 .*: Connection timed out; .*present address"):
        end()
    assert len(cluster.alive()) == 3
    cluster.machines[cluster.machine(0)]["State"] = {"Name": "shutting-down"}
    assert end()


def test_a_cluster_that_lost_a_machine_does_not_come_up_again(cluster, said):
    cluster.machines[cluster.machine(1)]["State"] = {"Name": "terminated"}
    with pytest.raises(RunFailed, match="has 1 of its 2 machines left: .*down --name 2xm5-2xlarge.*up"):
        up(HERE, request(), said.append)


def test_a_stack_that_cannot_be_deleted_is_named_and_tried_again(cluster, said, end):
    cluster.undeletable = "Group"
    with pytest.raises(RunFailed, match="was not deleted: Group: it is in use; run `istbench aws down`"):
        end()
    assert NAME in records()
    with pytest.raises(RunFailed, match="is DELETE_FAILED: run `istbench aws down"):
        up(HERE, request(), said.append)
    cluster.undeletable = ""
    assert end()
    assert cluster.alive() == []


def test_the_same_name_in_another_region_is_refused_and_its_local_files_stay(cluster, said, end):
    with pytest.raises(UserError, match="cluster 2xm5-2xlarge is in us-east-1: .*another --name"):
        up(Aws("eu-west-1"), request(), said.append)
    assert not end(aws=Aws("eu-west-1"))
    assert NAME in records()


def test_a_survey_finds_orphans_in_every_region(cluster, end):
    tags = [{"Key": "istbench:cluster", "Value": "lost"}]
    cluster.add_machine("eu-west-1", "lost", 0, tags)
    cluster.volumes["v"] = {"VolumeId": "vol-1", "Region": "eu-west-1", "Tags": tags}
    west, east = survey(["eu-west-1", "us-east-1"])
    assert (east.clusters, east.left_over, len(east.machines[NAME])) == ([NAME], {}, 2)
    assert west.left_over == {"lost": ["instance i-00000002 (running)", "volume vol-1"]}
    with pytest.raises(UserError, match="this computer has no key of cluster lost"):
        end(aws=Aws("eu-west-1"), name="lost")
    end(aws=Aws("eu-west-1"), name="lost", discard=True)
    assert cluster.machines["i-00000002"]["State"]["Name"] == "terminated"


def test_a_region_without_an_answer_is_a_problem_of_its_own(aws):
    aws.refuse = {"DescribeStacks": ("AccessDenied", "no")}
    (region,) = survey(["us-east-1"])
    assert "no permission" in region.problem


def test_a_damaged_record_is_an_error_with_the_way_out(aws):
    folder = LocalFiles("a").folder
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text('{"spec": 1}')
    with pytest.raises(UserError, match=f"cluster.json: spec must be a table.*delete {folder}"):
        records()


def test_a_fake_that_is_asked_wrongly_says_so(aws):
    with pytest.raises(AssertionError, match="Unknown parameter"):
        HERE.client("ec2").terminate_instances(Wrong=1)
    aws.refuse = {"DescribeRegions": ("No", "")}
    with pytest.raises(type(fake_aws.refusal("x", "y"))):
        HERE.client("ec2").describe_regions()
