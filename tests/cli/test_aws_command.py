"""The output, questions and refusals of `istbench aws`."""

import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import fake_aws
import pytest

from istbench.aws import access
from istbench.aws.local_files import LocalFiles

NAME = "2xm5-2xlarge"
FROM = ["--from", "198.51.100.7"]
UP = ["aws", "up", "--preset", "2xm5.2xlarge", "--max-hours", "2", *FROM]


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
    assert "2 h from now, ssh from 198.51.100.7/32 alone" in said
    status, printed, said = istbench(
        "aws", "up", "--preset", "2xm5.2xlarge", "--max-hours", "2", "--ssm", "--dry-run"
    )
    assert (status, aws.asked, "From" in json.loads(printed)["Parameters"]) == (0, [], False)
    assert "ssh through Session Manager" in said


def test_up_says_the_cost_and_starts_nothing_unless_told_to(aws, istbench):
    status, _, said = istbench(*UP)
    assert (status, aws.times("CreateStack")) == (2, 0)
    assert "at most $1.58" in said
    assert "give --yes" in said


def test_a_cluster_that_stands_is_said_with_its_own_end_and_cost(aws, istbench):
    made = ("aws", "up", "--preset", "2xm5.2xlarge", "--max-hours", "10", "--yes", *FROM)
    _, _, said = istbench(*made)
    assert "after 10 h" in said
    ends = json.loads(istbench("aws", "status", "--json")[1])["clusters"][0]["ends"]
    status, _, said = istbench("aws", "up", "--preset", "2xm5.2xlarge", "--max-hours", "1", "--price", "9", *FROM)
    assert (status, aws.times("CreateStack")) == (0, 1)
    assert f"end themselves by {ends}, 10 h after" in said
    assert "--max-hours 1 has no effect" in said
    assert "$0.79 an hour" in said
    assert "at most $7.92 in all" in said
    status, _, said = istbench(*made)
    assert (status, aws.times("CreateStack"), "has no effect" in said) == (0, 1, False)
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
    status, _, said = istbench("aws", "up", "mine.toml", "--max-hours", "2", "--yes", *FROM)
    assert (status, len(said.splitlines()), aws.times("CreateStack")) == (2, 1, 1)
    assert message in said
    assert "`istbench aws down --name 2xm5-2xlarge` first, or choose another --name" in said


@pytest.mark.parametrize("remembered", [True, False])
def test_a_cluster_of_someone_elses_is_not_taken_for_ones_own(aws, istbench, remembered):
    istbench(*UP, "--yes")
    (stack,) = aws.stacks.values()
    ends = "2026-01-02T03:04:05"
    if remembered:  # one of that name, which was taken down elsewhere
        stack["Parameters"] = [{"ParameterKey": "EndsAt", "ParameterValue": ends}]
    else:
        shutil.rmtree(LocalFiles(NAME).folder)
    status, _, said = istbench(*UP, "--yes")
    assert (status, len(said.splitlines())) == (2, 1)
    assert "this computer did not create it" in said
    assert (ends in said) == remembered
    assert istbench("aws", "down", "--name", NAME, "--region", "us-east-1")[0] == (0 if remembered else 2)
    assert istbench("aws", "down", "--name", NAME, "--region", "us-east-1", "--discard")[0] == 0
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
    assert (status, said) == (0, "there is no cluster 2xm5-2xlarge in us-east-1\n")
    assert istbench("aws", "status")[:2] == (0, "no clusters of istbench in 2 regions\n")


def test_orphans_are_listed_with_what_ends_them(aws, istbench, monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    aws.add_machine("eu-west-1", "lost", 0, [{"Key": "istbench:cluster", "Value": "lost"}])
    status, printed, _ = istbench("aws", "status")
    assert status == 1
    assert "left over: instance i-00000000 (running)" in printed
    assert "istbench aws down --name lost --region eu-west-1" in printed
    assert istbench("aws", "down", "--name", "lost", "--region", "eu-west-1", "--discard")[0] == 0
    assert aws.alive() == []


def test_without_leave_to_list_regions_those_used_are_looked_at(aws, istbench):
    istbench(*UP, "--yes")
    aws.refuse = {"DescribeRegions": ("UnauthorizedOperation", "no")}
    status, printed, said = istbench("aws", "status")
    assert (status, NAME in printed) == (0, True)
    assert "only us-east-1 and the regions of clusters from this computer are searched" in said


def test_up_prints_its_folder_and_the_commands_that_use_it(aws, istbench):
    status, printed, said = istbench(*UP, "--yes")
    files = LocalFiles(NAME)
    assert (status, printed) == (0, f"{files.folder}\n")
    hosts = f"--hosts {files.hosts} --ssh-config {files.ssh_config}"
    assert f"  istbench doctor {hosts} --install\n" in said
    assert f"  istbench run {hosts} --install --method ist --workload speech\n" in said
    assert f"  istbench aws down --name {NAME} --region us-east-1\n" in said


@pytest.fixture
def endpoint(monkeypatch):
    """A web server in the place of AWS's, which answers a caller with `text`."""

    class Answer(http.server.BaseHTTPRequestHandler):
        text = b"198.51.100.9\n"

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(access, "_ADDRESS_URL", f"http://127.0.0.1:{server.server_port}/")
    yield Answer
    server.shutdown()
    server.server_close()


def test_without_from_the_callers_own_address_alone_may_connect(aws, istbench, endpoint):
    up = [word for word in UP if word not in FROM]
    assert istbench(*up, "--yes")[0] == 0
    assert list(aws.groups.values()) == [["198.51.100.9/32"]]


def test_an_address_that_is_not_found_is_not_guessed_and_nothing_starts(aws, istbench, endpoint, monkeypatch):
    up = [word for word in UP if word not in FROM]
    endpoint.text = b"<html>sign in</html>"
    status, _, said = istbench(*up, "--yes")
    assert (status, aws.times("CreateStack")) == (2, 0)
    assert "answers '<html>sign in</html>', not an IPv4 address; give --from CIDR" in said
    monkeypatch.setattr(access, "_ADDRESS_URL", "http://127.0.0.1:9/")
    status, _, said = istbench(*up, "--yes")
    assert (status, aws.times("CreateStack")) == (2, 0)
    assert "does not tell your address" in said


def test_session_manager_needs_its_plugin(aws, istbench):
    up = [word for word in UP if word not in FROM]
    status, _, said = istbench(*up, "--ssm", "--yes")
    assert (status, aws.asked, len(said.splitlines())) == (2, [], 1)
    assert "session-manager-plugin: install the AWS CLI and its Session Manager plugin" in said


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
        (["down"], "this computer created no cluster; give --name"),
        ([*UP[1:], "--from", "0.0.0.0/0"], "--from 0.0.0.0/0 lets every computer connect"),
        ([*UP[1:], "--from", "here"], "--from 'here' is no IPv4 network; give an address or a network"),
        ([*UP[1:], "--ssm"], "--ssm lets no address connect; leave out --from or --ssm"),
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
