"""A small AWS in memory behind boto3's own clients, which check every call against AWS's own description.

It answers the calls of istbench. Its machines are those of the template and boot at once. `FakeSsh` reaches them.
"""

# Operations and their arguments have AWS's own names here.
# ruff: noqa: N802, N803

import datetime
import json
import os
import shlex
from collections import Counter
from dataclasses import dataclass, field

import botocore.client
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass
class FakeAws:
    """Stacks, machines and disks in all regions.

    Attributes:
        stacks, machines: by identity. groups: by security group, the networks that reach ssh.
        asked: the operation of every call. refuse: by operation, the code and text of AWS's error.
        broken: by logical name, why AWS cannot create this resource. ssh: the way to the machines.
    """

    regions: tuple = ("eu-west-1", "us-east-1")
    stacks: dict = field(default_factory=dict)
    machines: dict = field(default_factory=dict)
    volumes: dict = field(default_factory=dict)
    groups: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    refuse: dict = field(default_factory=dict)
    broken: dict = field(default_factory=dict)
    undeletable: str = ""
    ssh: object = None

    def call(self, client, operation, given):
        """Stands in for `BaseClient._make_api_call`."""
        described = client.meta.service_model.operation_model(operation)
        if described.input_shape is not None:
            given = {key: value for key, value in given.items() if value is not None}
            report = ParamValidator().validate(given, described.input_shape)
            assert not report.has_errors(), report.generate_report()
        self.asked.append(operation)
        if operation in self.refuse:
            raise refusal(operation, *self.refuse[operation])
        return getattr(self, f"_{operation}")(client.meta.region_name, **given)

    def machine(self, rank, cluster="2xm5-2xlarge"):
        """The identity of the machine of `rank` that was made last."""
        found = [key for key, one in self.machines.items() if one["Rank"] == rank and one["Cluster"] == cluster]
        return found[-1]

    # CloudFormation

    def _CreateStack(self, region, StackName, TemplateBody, Parameters, Tags, **given):
        assert given["Capabilities"] == ["CAPABILITY_IAM"]
        resources = json.loads(TemplateBody)["Resources"]
        cluster = Tags[0]["Value"]
        identity = f"arn:aws:cloudformation:{region}:1:stack/{StackName}/{len(self.stacks)}"
        events = [(name, "CREATE_FAILED", why) for name, why in self.broken.items() if name in resources]
        stack = {
            "StackId": identity, "StackName": StackName, "Tags": Tags, "CreationTime": NOW,
            "StackStatus": "CREATE_IN_PROGRESS", "Region": region, "Events": events, "Outputs": [],
            "Parameters": Parameters, "TemplateBody": TemplateBody,
        }  # fmt: skip
        self.stacks[identity] = stack
        if events:
            stack["StackStatus"] = "DELETE_COMPLETE" if given["OnFailure"] == "DELETE" else "CREATE_FAILED"
            return {"StackId": identity}
        group = f"sg-{len(self.stacks):08x}"
        self.groups[group] = [one["ParameterValue"] for one in Parameters if one["ParameterKey"] == "From"]
        stack["Outputs"].append({"OutputKey": "Group", "OutputValue": group})
        for name, resource in resources.items():
            if resource["Type"] == "AWS::EC2::Instance":
                tags = resource["Properties"]["Tags"]
                rank = next(int(tag["Value"]) for tag in tags if tag["Key"] == "istbench:rank")
                stack["Outputs"].append({"OutputKey": name, "OutputValue": f"i-{len(self.machines):08x}"})
                self.add_machine(region, cluster, rank, tags)
        return {"StackId": identity}

    def add_machine(self, region, cluster, rank, tags):
        """A machine that runs."""
        number = len(self.machines)
        self.machines[f"i-{number:08x}"] = {
            "InstanceId": f"i-{number:08x}", "Tags": tags, "State": {"Name": "running"}, "Region": region,
            "PrivateIpAddress": f"10.80.0.{number + 10}", "PublicIpAddress": f"203.0.113.{number + 10}",
            "InstanceType": "m5.2xlarge", "Rank": rank,
            "Cluster": cluster,
        }  # fmt: skip

    def _DescribeStacks(self, region, StackName=None):
        if StackName is None:
            return {"Stacks": [one for one in self.stacks.values() if one["Region"] == region]}
        named = [one for one in self.stacks.values() if StackName in (one["StackId"], one["StackName"])]
        by_name = StackName.startswith("istbench-")
        found = [
            one for one in named
            if one["Region"] == region and not (by_name and one["StackStatus"] == "DELETE_COMPLETE")
        ]  # fmt: skip
        if not found:
            raise refusal("DescribeStacks", "ValidationError", f"Stack with id {StackName} does not exist")
        answer = dict(found[-1])
        if found[-1]["StackStatus"] == "CREATE_IN_PROGRESS":
            found[-1]["StackStatus"] = "CREATE_COMPLETE"
        return {"Stacks": [answer]}

    def _DescribeStackEvents(self, region, StackName):
        events = self.stacks[StackName]["Events"]
        cancelled = ("Node1", "CREATE_FAILED", "Resource creation cancelled")
        return {
            "StackEvents": [
                {"LogicalResourceId": name, "ResourceStatus": status, "ResourceStatusReason": why}
                for name, status, why in [cancelled, *reversed(events)]
            ]
        }

    def _DeleteStack(self, region, StackName):
        stack = self.stacks[StackName]
        if self.undeletable:
            stack["StackStatus"] = "DELETE_FAILED"
            stack["Events"].append((self.undeletable, "DELETE_FAILED", "it is in use"))
            return {}
        for machine in self.machines.values():
            if f"istbench-{machine['Cluster']}" == stack["StackName"]:
                machine["State"] = {"Name": "terminated"}
        stack["StackStatus"] = "DELETE_COMPLETE"
        return {}

    # EC2

    def _DescribeRegions(self, region):
        return {"Regions": [{"RegionName": name} for name in self.regions]}

    def _DescribeInstances(self, region, Filters=(), InstanceIds=None):
        wanted = {one["Name"]: one["Values"] for one in Filters}
        found = []
        for machine in self.machines.values():
            tags = {tag["Key"]: tag["Value"] for tag in machine["Tags"]}
            cluster = wanted.get("tag:istbench:cluster", ["*"])[0]
            fits = machine["Region"] == region and cluster in ("*", tags.get("istbench:cluster"))
            fits = fits and machine["State"]["Name"] in wanted.get(
                "instance-state-name", [machine["State"]["Name"]]
            )
            if fits and (InstanceIds is None or machine["InstanceId"] in InstanceIds):
                found.append(machine)
        return {"Reservations": [{"Instances": [machine]} for machine in found]}

    def _DescribeVolumes(self, region, Filters=()):
        return {"Volumes": [one for one in self.volumes.values() if one["Region"] == region]}

    def _TerminateInstances(self, region, InstanceIds):
        for identity in InstanceIds:
            self.machines[identity]["State"] = {"Name": "terminated"}
        return {}

    def _GetResources(self, region, TagFilters, PaginationToken=""):
        return {"ResourceTagMappingList": [], "PaginationToken": ""}

    def _DescribeSecurityGroupRules(self, region, Filters):
        (group,) = Filters[0]["Values"]
        ssh = [
            {"SecurityGroupRuleId": f"sgr-{number}", "IsEgress": False, "FromPort": 22, "CidrIpv4": network}
            for number, network in enumerate(self.groups[group])
        ]
        inside = {"SecurityGroupRuleId": "sgr-a", "IsEgress": False, "FromPort": 0, "ReferencedGroupInfo": {}}
        return {"SecurityGroupRules": [inside, *ssh]}

    def _ModifySecurityGroupRules(self, region, GroupId, SecurityGroupRules):
        for change in SecurityGroupRules:
            rule = change["SecurityGroupRule"]
            assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 22, 22)
            number = int(change["SecurityGroupRuleId"].removeprefix("sgr-"))
            self.groups[GroupId][number] = rule["CidrIpv4"]
        return {"Return": True}

    def alive(self):
        """Machines and stacks that still cost money."""
        machines = [key for key, one in self.machines.items() if one["State"]["Name"] != "terminated"]
        stacks = [one["StackName"] for one in self.stacks.values() if one["StackStatus"] != "DELETE_COMPLETE"]
        return sorted([*machines, *stacks])

    def times(self, operation):
        """How often an operation was asked for."""
        return Counter(self.asked)[operation]


def refusal(operation, code, text=""):
    """An error as AWS answers."""
    return ClientError({"Error": {"Code": code, "Message": text}}, operation)


class FakeSsh:
    """An `ssh` for PATH that runs each command in a directory of this machine, the home of its host.

    Every machine has booted, unless `fail` says otherwise.
    """

    def __init__(self, folder):
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "ssh").write_text(_SSH.format(folder=folder))
        (folder / "bin" / "ssh").chmod(0o755)

    def home(self, host):
        """The home directory on `host`."""
        home = self.folder / "homes" / host
        (home / ".ssh").mkdir(parents=True, exist_ok=True)
        return home

    def fail(self, host, said="", status=255):
        """Let every command on `host` print `said` and end with `status`; status 0 ends that."""
        (self.folder / f"{host}.fails").write_text(
            f"echo {shlex.quote(said)} >&2; exit {status}" if status else ":"
        )

    def told(self, host):
        """The commands that `host` got."""
        path = self.folder / f"{host}.told"
        return path.read_text().split("\0")[:-1] if path.exists() else []


_SSH = """#!/bin/sh
test "$1" = -F && test -f "$2" || exit 99
while [ "$1" != -- ]; do shift; done
printf '%s\\0' "$3" >> "{folder}/$2.told"
if [ -e "{folder}/$2.fails" ]; then . "{folder}/$2.fails"; fi
case "$3" in *cloud-init*) exit 0;; esac
mkdir -p "{folder}/homes/$2/.ssh"
unset ISTBENCH_CACHE
cd "{folder}/homes/$2" && exec sh -c "$3"
"""


def put_in_place(patch, tmp_path):
    """A `FakeAws` behind boto3's clients, with local files and credentials of its own."""
    fake = FakeAws()
    patch.setattr(botocore.client.BaseClient, "_make_api_call", lambda *call: fake.call(*call))
    fake.ssh = nobodys_credentials(patch, tmp_path)
    return fake


def nobodys_credentials(patch, tmp_path):
    """An environment with a region, credentials, local files and an ssh of its own; waiting takes no time.

    Returns its `FakeSsh`.
    """
    from istbench.aws import session

    patch.setattr(session, "pause", lambda _: None)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_DEFAULT_REGION"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    patch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    ssh = FakeSsh(tmp_path / "ssh")
    patch.setenv("PATH", f"{ssh.folder / 'bin'}:{os.environ['PATH']}")
    return ssh
