"""What a template must say, whatever the spec: who may do what, who reaches whom, and how it ends."""

import json
import subprocess
from datetime import UTC, datetime

import msgspec
import pytest

from istbench.aws.local_files import Keys
from istbench.aws.session import Aws
from istbench.aws.spec import MOST_MACHINES, ClusterName, SetupLine, Zone, preset, presets
from istbench.aws.stack import create_stack
from istbench.aws.template import AGENT_ACTIONS, BOOTED, TAG, template, user_data

HERE = Aws("us-east-1")
SPECS = [
    *presets().values(),
    msgspec.structs.replace(preset("2xm5.2xlarge"), spot=True, placement_group=False, zone=Zone("us-east-1b")),
]
# CloudFormation gives these no tags.
UNTAGGED = {
    "EC2::VPCGatewayAttachment", "EC2::Route", "EC2::SubnetRouteTableAssociation", "EC2::SecurityGroupIngress",
    "EC2::SecurityGroupEgress", "IAM::InstanceProfile", "Scheduler::Schedule",
}  # fmt: skip


@pytest.fixture(params=SPECS, ids=lambda spec: f"{spec.cluster}{'-spot' if spec.spot else ''}")
def spec(request):
    return request.param


@pytest.fixture
def resources(spec):
    made = template(spec)
    assert json.loads(json.dumps(made)) == made
    return made["Resources"]


def of(resources, kind):
    return [part["Properties"] for part in resources.values() if part["Type"] == f"AWS::{kind}"]


def statements(resources, role):
    policies = resources[role]["Properties"]["Policies"]
    assert "ManagedPolicyArns" not in resources[role]["Properties"]
    return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]


def test_a_machine_may_answer_systems_manager_alone_and_nothing_without_it(spec, resources):
    assert "Role" not in resources
    assert "IamInstanceProfile" not in json.dumps(resources)
    reached = template(spec, ssm=True)["Resources"]
    (agent,) = statements(reached, "Role")
    assert agent["Action"] == list(AGENT_ACTIONS)
    assert all(action.split(":")[0] in ("ssm", "ssmmessages", "ec2messages") for action in agent["Action"])
    assert not any("*" in action for action in agent["Action"])
    (machine,) = of(reached, "EC2::LaunchTemplate")
    assert machine["LaunchTemplateData"]["IamInstanceProfile"] == {"Arn": {"Fn::GetAtt": ["Profile", "Arn"]}}


def test_the_guard_may_end_machines_of_this_cluster_alone(spec, resources):
    (statement,) = statements(resources, "GuardRole")
    assert statement["Action"] == ["ec2:TerminateInstances"]
    assert statement["Condition"] == {"StringEquals": {f"ec2:ResourceTag/{TAG}": spec.cluster}}


def test_the_guard_ends_every_machine_by_itself(spec, resources):
    guards = of(resources, "Scheduler::Schedule")
    targets = [guard["Target"] for guard in guards]
    ids = [json.loads(target["Input"]["Fn::Sub"])["InstanceIds"] for target in targets]
    # AWS ends no machine where one of those that a request names has ended long ago.
    assert ids == [[f"${{Node{rank}}}"] for rank in range(spec.count)]
    assert all(target["Arn"]["Fn::Sub"].endswith(":aws-sdk:ec2:terminateInstances") for target in targets)
    assert all(guard["ScheduleExpression"] == {"Fn::Sub": "at(${EndsAt})"} for guard in guards)


def test_the_template_of_the_largest_cluster_is_one_that_aws_takes(aws):
    longest = [SetupLine("a" * 999)] * 8
    spec = msgspec.structs.replace(
        preset("8xp3.2xlarge"), count=MOST_MACHINES, spot=True, name=ClusterName("a" * 40), setup=longest
    )
    create_stack(HERE, spec, 1.0, datetime(2026, 1, 1, tzinfo=UTC), Keys(user="u", host="h"), None)
    (stack,) = aws.stacks.values()
    assert 30_000 < len(stack["TemplateBody"]) < 51_200


def test_from_outside_one_network_reaches_ssh_and_nobody_with_session_manager(spec, resources):
    (group,) = of(resources, "EC2::SecurityGroup")
    assert "SecurityGroupIngress" not in group
    itself = {"Fn::GetAtt": ["Group", "GroupId"]}
    ssh, inside = of(resources, "EC2::SecurityGroupIngress")
    assert ssh == {"GroupId": itself, "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": {"Ref": "From"}}
    assert (inside["GroupId"], inside["SourceSecurityGroupId"]) == (itself, itself)
    assert not any(key.startswith("Cidr") or key.endswith("PrefixListId") for key in inside)
    assert {rule["FromPort"] for rule in group["SecurityGroupEgress"]} == {80, 443}
    assert "KeyName" not in json.dumps(resources)
    assert of(template(spec, ssm=True)["Resources"], "EC2::SecurityGroupIngress") == [inside]
    assert "From" not in template(spec, ssm=True)["Parameters"]


def test_machines_are_encrypted_want_tokens_and_end_when_they_shut_down(spec, resources):
    (machine,) = of(resources, "EC2::LaunchTemplate")
    data = machine["LaunchTemplateData"]
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    disks = [mapping["Ebs"] for mapping in data["BlockDeviceMappings"]]
    assert disks
    assert all(disk["Encrypted"] and disk["DeleteOnTermination"] for disk in disks)
    assert disks[0]["VolumeSize"] == spec.volume_gib
    assert data["InstanceType"] == spec.instance_type
    assert ("InstanceMarketOptions" in data) == spec.spot
    assert ("Placement" in data) == spec.placement_group == bool(of(resources, "EC2::PlacementGroup"))
    nodes = of(resources, "EC2::Instance")
    assert len(nodes) == spec.count
    assert all(node["LaunchTemplate"]["LaunchTemplateId"] == {"Ref": "Machine"} for node in nodes)
    assert of(resources, "EC2::Subnet")[0].get("AvailabilityZone") == spec.zone


def test_everything_has_the_clusters_tag(spec, resources):
    wanted = {"Key": TAG, "Value": spec.cluster}
    for name, resource in resources.items():
        kind = resource["Type"].removeprefix("AWS::")
        if kind == "EC2::LaunchTemplate":
            inside = resource["Properties"]["LaunchTemplateData"]["TagSpecifications"]
            assert {part["ResourceType"] for part in inside} == {"instance", "volume", "network-interface"}
            assert all(wanted in part["Tags"] for part in (*inside, *resource["Properties"]["TagSpecifications"]))
        elif kind not in UNTAGGED:
            assert wanted in resource["Properties"]["Tags"], name


def test_every_name_that_is_referred_to_is_there(spec, resources):
    known = {*resources, *template(spec)["Parameters"]}

    def referred(part):
        if isinstance(part, dict):
            if "Ref" in part:
                yield part["Ref"]
            if "Fn::GetAtt" in part:
                yield part["Fn::GetAtt"][0]
            yield from (name for value in part.values() for name in referred(value))
        elif isinstance(part, list):
            yield from (name for value in part for name in referred(value))

    assert set(referred(template(spec))) <= known
    assert {resource["Type"].split("::")[0] for resource in resources.values()} == {"AWS"}


def test_a_machine_arms_its_end_before_anything_else_and_the_setup_is_taken_as_written():
    spec = msgspec.structs.replace(preset("2xm5.2xlarge"), setup=[SetupLine("echo ${HOME} > x")])
    lines = user_data(spec).splitlines()
    assert lines[0] == "#!/bin/bash"
    assert lines[1].startswith("shutdown -P +${MaxMinutes} ")
    # Before `set -e`: nothing that fails keeps the end from being armed.
    assert lines.index("systemctl enable --now istbench-end.timer") < lines.index("set -e")
    assert lines.index("set -e") < lines.index("echo ${!HOME} > x") < lines.index(f"touch {BOOTED}")


def test_the_boot_script_is_shell_and_its_timer_names_a_time():
    script = user_data(preset("8xp3.2xlarge")).replace("${MaxMinutes}", "90").replace("${!", "${")
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""
    assert len(script) + 8_000 < 15_000  # of 16 KiB, with the keys and the longest `setup`
    (line,) = [line for line in script.splitlines() if line.startswith("end=")]
    shown = subprocess.run(["bash", "-c", f'{line}; echo "$end"'], text=True, capture_output=True).stdout
    assert shown.strip().endswith(" UTC")


def test_cfn_lint_finds_nothing():
    api = pytest.importorskip("cfnlint.api", reason="cfn-lint is not installed: pip install cfn-lint")
    spec = msgspec.structs.replace(preset("2xp3.2xlarge"), spot=True)
    for ssm in (False, True):
        assert [str(one) for one in api.lint(json.dumps(template(spec, ssm=ssm)), regions=["us-east-1"])] == []
