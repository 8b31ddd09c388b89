"""`istbench aws` as a user has it: what it prints, asks and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import fake_aws
import pytest

from istbench.aws import errands
from istbench.aws.local_files import memory_file
from istbench.aws.wheel import Package

NAME = "2xm5-2xlarge"
UP = ["aws", "up", "--preset", "2xm5.2xlarge", "--max-hours", "2"]


@pytest.fixture
def aws(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return fake_aws.put_in_place(monkeypatch, tmp_path)


def test_a_template_is_printed_without_boto3(istbench, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    status, printed, _ = istbench("aws", "template", "--preset", "4xm5.2xlarge")
    assert status == 0
    assert len([name for name in json.loads(printed)["Resources"] if name.startswith("Node")]) == 4
    status, _, said = istbench(*UP, "--yes")
    assert (status, len(said.splitlines())) == (2, 1)
    assert "pip install 'istbench[aws]'" in said


def test_a_dry_run_says_template_cost_and_calls_and_asks_nothing(aws, istbench):
    status, printed, said = istbench(*UP, "--dry-run")
    assert (status, aws.asked) == (0, [])
    assert "AWS::EC2::LaunchTemplate" in printed
    assert "2 x m5.2xlarge at $0.384 an hour" in said
    assert "at most $1.58" in said
    assert "cloudformation create-stack istbench-2xm5-2xlarge, MaxMinutes=120" in said
    status, printed, _ = istbench(
        "aws",
        "run",
        "--preset",
        "2xm5.2xlarge",
        "--dry-run",
        "--",
        "run",
        "--method",
        "ist",
        "--workload",
        "toy",
    )
    assert (status, aws.asked) == (0, [])
    assert "torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 --rdzv-endpoint ADDRESS-OF-0:29500" in printed


def test_up_says_the_cost_and_starts_nothing_unless_told_to(aws, istbench):
    status, _, said = istbench(*UP)
    assert (status, aws.times("CreateStack")) == (2, 0)
    assert "at most $1.58" in said
    assert "give --yes" in said


def test_a_cluster_that_stands_is_said_with_its_own_end_and_cost(aws, istbench):
    made = ("aws", "up", "--preset", "2xm5.2xlarge", "--max-hours", "10", "--yes")
    _, _, said = istbench(*made)
    assert "after 10 h" in said
    ends = json.loads(istbench("aws", "status", "--json")[1])["clusters"][0]["ends"]
    status, _, said = istbench("aws", "up", "--preset", "2xm5.2xlarge", "--max-hours", "1", "--price", "9")
    assert (status, aws.times("CreateStack")) == (0, 1)
    assert f"end themselves by {ends}, 10 h after" in said
    assert "--max-hours 1 changes nothing" in said
    assert "$0.79 an hour" in said
    assert "at most $7.92 in all" in said
    status, _, said = istbench(*made)
    assert (status, aws.times("CreateStack"), "changes nothing" in said) == (0, 1, False)
    assert f"by {ends}" in said


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"spot": "true"}, "its spot is false, not true"),
        ({"count": "1"}, "its count is 2, not 1"),
        (
            {"instance_type": '"c5.xlarge"', "zone": '"us-east-1b"'},
            "its instance_type is m5.2xlarge, not c5.xlarge; ",
        ),
        ({"setup": '["true"]'}, "its setup is another"),
    ],
)
def test_another_spec_under_the_name_of_a_cluster_that_stands_is_refused(aws, istbench, tmp_path, changed, message):
    istbench(*UP, "--yes")
    fields = {"instance_type": '"m5.2xlarge"', "count": "2", "name": f'"{NAME}"', **changed}
    (tmp_path / "mine.toml").write_text("".join(f"{key} = {value}\n" for key, value in fields.items()))
    status, _, said = istbench("aws", "up", "mine.toml", "--max-hours", "2", "--yes")
    assert (status, len(said.splitlines()), aws.times("CreateStack")) == (2, 1, 1)
    assert message in said
    assert "`istbench aws down --name 2xm5-2xlarge` first, or give this one another --name" in said


@pytest.mark.parametrize("remembered", [True, False])
def test_a_cluster_of_someone_elses_is_not_taken_for_ones_own(aws, istbench, remembered):
    istbench(*UP, "--yes")
    (stack,) = aws.stacks.values()
    ends = "2026-01-02T03:04:05"
    if remembered:  # one of that name, which was taken down elsewhere
        stack["Parameters"] = [{"ParameterKey": "EndsAt", "ParameterValue": ends}]
    else:
        memory_file().unlink()
    status, _, said = istbench(*UP, "--yes")
    assert (status, len(said.splitlines())) == (2, 1)
    assert "it was not made from here" in said
    assert (ends in said) == remembered
    assert istbench("aws", "down", "--name", NAME, "--region", "us-east-1")[0] == 0
    assert "--name 2xm5-2xlarge --region us-east-1` first" in said


def test_a_cluster_up_in_the_status_and_down(aws, istbench):
    assert istbench(*UP, "--yes")[0] == 0
    status, printed, _ = istbench("aws", "status")
    assert status == 0
    assert printed.startswith(
        "2xm5-2xlarge in us-east-1: CREATE_COMPLETE, 2 x m5.2xlarge running, $0.79 an hour, ends"
    )
    status, printed, _ = istbench("aws", "status", "--json", "--region", "us-east-1")
    (cluster,) = json.loads(printed)["clusters"]
    assert (status, cluster["name"], len(cluster["machines"]), cluster["left_over"]) == (0, NAME, 2, [])
    status, _, said = istbench("aws", "down")
    assert (status, aws.alive()) == (0, [])
    assert "cluster 2xm5-2xlarge is gone from us-east-1" in said
    status, _, said = istbench("aws", "down", "--preset", "2xm5.2xlarge")
    assert (status, said) == (0, "there is nothing of cluster 2xm5-2xlarge in us-east-1\n")
    assert istbench("aws", "status")[:2] == (0, "nothing of istbench in 2 regions\n")


def test_orphans_are_listed_with_what_ends_them(aws, istbench, monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    aws.add_machine("eu-west-1", "lost", 0, [{"Key": "istbench:cluster", "Value": "lost"}])
    status, printed, _ = istbench("aws", "status")
    assert status == 1
    assert "left over: instance i-00000000 (running)" in printed
    assert "istbench aws down --name lost --region eu-west-1" in printed
    assert istbench("aws", "down", "--name", "lost", "--region", "eu-west-1")[0] == 0
    assert aws.alive() == []


def test_without_leave_to_list_regions_those_used_are_looked_at(aws, istbench):
    istbench(*UP, "--yes")
    aws.refuse = {"DescribeRegions": ("UnauthorizedOperation", "no")}
    status, printed, said = istbench("aws", "status")
    assert (status, NAME in printed) == (0, True)
    assert "only regions that were used from here are looked at" in said


@pytest.mark.parametrize("status", [0, 1])
def test_where_saved_weights_come_is_said_once_there_are_any(aws, istbench, monkeypatch, status):
    istbench(*UP, "--yes")
    monkeypatch.setattr(errands, "package", lambda *_: Package(wheel=None, requirement="istbench"))
    monkeypatch.setattr(errands, "follow", lambda *_: status)
    train = ("run", "--method", "ist", "--workload", "toy")
    _, _, said = istbench("aws", "run", "--", *train, "--save", "weights")
    assert ("into results/aws/2xm5-2xlarge/saved/weights" in said) == (status == 0)
    assert any("--save /opt/istbench/results/saved/weights" in lines for lines in aws.lines(0))
    assert "weights" not in istbench("aws", "run", "--", *train)[2]


@pytest.mark.parametrize("lost", [True, False])
def test_a_run_that_is_not_followed_to_its_end_is_said_to_go_on_unless_a_machine_is_lost(
    aws, istbench, monkeypatch, lost
):
    istbench(*UP, "--yes")
    monkeypatch.setattr(errands, "package", lambda *_: Package(wheel=None, requirement="istbench"))

    def fail(_):
        if lost:
            aws.machines[aws.machine(1)]["State"] = {"Name": "terminated"}
        else:
            aws.refuse = {"ListObjectsV2": ("ExpiredToken", "expired")}

    monkeypatch.setattr(errands, "pause", fail)
    status, _, said = istbench("aws", "run", "--", "run", "--method", "ist", "--workload", "toy")
    assert (status, "the run goes on" in said) == (1, not lost)
    assert ("machine 1 (i-00000001): ended before the run" in said) == lost
    if lost:  # and no other is trained on fewer machines
        told = len(aws.told)
        status, _, said = istbench("aws", "run", "--", "run", "--method", "ddp", "--workload", "toy")
        assert (status, len(aws.told)) == (1, told)
        assert "has 1 of its 2 machines left" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--preset", "2xm5.2xlarge"], "give --max-hours"),
        (["up", "--preset", "2xm5.2xlarge", "--max-hours", "1000"], "--max-hours must be a number of at most 240"),
        (["up", "--preset", "3xm5.2xlarge", "--max-hours", "1"], "unknown preset '3xm5.2xlarge'; did you mean"),
        (["up", "--max-hours", "1"], "give a spec, SPEC.toml, or --preset NAME"),
        (["up", "none.toml", "--max-hours", "1"], "no file none.toml; give a TOML cluster spec"),
        (
            ["template", "--preset", "2xm5.2xlarge", "--region", "here"],
            "--region must be a region, such as us-east-1",
        ),
        (
            ["up", "--preset", "2xm5.2xlarge", "--max-hours", "1", "--price", "-1"],
            "--price must be a number above 0",
        ),
        (["run", "--", "run"], "no cluster was made from here; give --name"),
        (["fetch", "--name", "none"], "no cluster none in us-east-1"),
        (["run", "--preset", "2xm5.2xlarge"], "nothing to run"),
        (["fetch"], "no cluster was made from here; give --name"),
    ],
)
def test_wrong_use_is_refused_in_one_line(aws, istbench, arguments, message):
    status, _, said = istbench("aws", *arguments)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said


def test_a_failure_of_aws_is_one_line_with_status_1(aws, istbench):
    aws.refuse = {"CreateStack": ("ExpiredToken", "expired")}
    status, _, said = istbench(*UP, "--yes")
    assert status == 1
    assert said.splitlines()[-1].startswith("istbench: AWS credentials have expired")


def test_scripts_print_what_they_would_do_and_cost_without_yes(tmp_path):
    folder = Path(__file__).parents[2] / "scripts" / "aws"
    scripts = sorted(path for path in folder.glob("[248]x*.sh"))
    assert len(scripts) == 6
    for script in [*scripts, folder / "reproduce.sh"]:
        assert subprocess.run(["bash", "-n", script], capture_output=True).returncode == 0
