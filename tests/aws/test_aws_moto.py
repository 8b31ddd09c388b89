"""A cluster from up to down on moto's server, and each step refused: `down` leaves nothing after any failure."""

import logging

import fake_aws
import moto_aws
import msgspec
import pytest
from moto_aws import HERE, IMAGE, REGION, as_moto_can, inventory

from istbench.aws import session
from istbench.aws.access import allow_only
from istbench.aws.lifecycle import ClusterRequest, down, up
from istbench.aws.local_files import LocalFiles, records
from istbench.aws.spec import preset
from istbench.aws.stack import find_stack
from istbench.aws.survey import survey
from istbench.aws.template import template
from istbench.base.errors import RunFailed

pytest.importorskip("moto.server")

NAME = "2xm5-2xlarge"
SPEC = msgspec.structs.replace(preset("2xm5.2xlarge"), image=IMAGE)
REQUEST = ClusterRequest(spec=SPEC, max_hours=1.0, per_hour=0.79, network="198.51.100.7/32")
LIFE = {
    "up": ["DescribeStacks", "CreateStack", "DescribeStacks", "DescribeInstances"],
    "up again": ["DescribeStacks", "DescribeStacks", "DescribeSecurityGroupRules", "DescribeInstances"],
    "down": [
        "DescribeStacks", "DescribeInstances", "TerminateInstances", "DescribeInstances", "DeleteStack",
        "DescribeStacks", "DescribeInstances", "DescribeVolumes", "GetResources",
    ],
}  # fmt: skip
"""The calls in the life of a cluster."""
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
    """A cluster's life; returns the calls in each part of it."""
    asked = {}
    for part, step in {
        "up": lambda: up(HERE, REQUEST, said.append),
        "up again": lambda: up(HERE, REQUEST, said.append),
        "down": lambda: down(HERE, NAME, discard=False, out=out, say=said.append),
    }.items():
        before = len(moto.asked)
        step()
        asked[part] = moto.asked[before:]
    return asked


def test_a_clusters_life_leaves_nothing(moto, said, tmp_path):
    assert live(moto, tmp_path, said) == LIFE
    assert not down(HERE, NAME, discard=False, out=tmp_path, say=said.append)
    assert records() == {}


def test_a_cluster_is_surveyed_and_lets_in_one_network(moto, said, tmp_path):
    up(HERE, REQUEST, said.append)
    made = inventory() - moto.clean
    assert (made["machine"], made["disk"], made["role"], made["profile"]) == (2, 2, 1, 0)
    config = LocalFiles(NAME).ssh_config.read_text()
    machines = [
        one for group in HERE.client("ec2").describe_instances()["Reservations"] for one in group["Instances"]
    ]
    alive = [one for one in machines if one["State"]["Name"] == "running"]
    assert [f"HostName {one['PublicIpAddress']}\n" in config for one in alive] == [True, True]
    (region,) = survey([REGION])
    assert (region.clusters, region.left_over, region.problem) == ([NAME], {}, "")
    assert [machine.kind for machine in region.machines[NAME]] == ["m5.2xlarge"] * 2
    group = find_stack(HERE, NAME).group
    for network, change in (("203.0.113.0/24", True), ("203.0.113.0/24", False)):
        assert allow_only(HERE, group, network) == change
        (found,) = HERE.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"]
        ranges = [one["CidrIp"] for rule in found["IpPermissions"] for one in rule["IpRanges"]]
        assert ranges == [network]
    assert down(HERE, NAME, discard=False, out=tmp_path, say=said.append)
    (region,) = survey([REGION])
    assert (region.clusters, region.problem) == ([], "")


@pytest.mark.parametrize(("place", "operation"), STEPS)
def test_whatever_aws_refuses_in_a_clusters_life_down_leaves_nothing(moto, said, tmp_path, place, operation):
    moto.refused = place
    with pytest.raises(RunFailed, match="no permission .*docs/aws.md lists the permissions"):
        live(moto, tmp_path, said)
    assert (len(moto.asked), moto.asked[-1]) == (place + 1, operation)
    moto.refused = None
    down(HERE, NAME, discard=False, out=tmp_path, say=said.append)
    assert records() == {}


@pytest.mark.parametrize("name", as_moto_can(template(SPEC))["Resources"])
def test_whatever_resource_fails_down_deletes_those_created_before(moto, said, tmp_path, monkeypatch, name):
    moto_aws.refuse_resource(monkeypatch, name)
    with pytest.raises(RunFailed, match=f"to create cluster {NAME} in {REGION}, and refused: {name}: no"):
        up(HERE, REQUEST, said.append)
    assert find_stack(HERE, NAME).status == "CREATE_IN_PROGRESS"
    assert down(HERE, NAME, discard=False, out=tmp_path, say=said.append)
