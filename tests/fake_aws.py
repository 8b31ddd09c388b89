"""A small AWS in memory, behind boto3's own clients: what is asked must be as AWS itself describes its services.

It knows what istbench asks. Machines are those of the template; they boot at once, and do with shell what
`FakeAws.shell` says.
"""

# Operations and their arguments have AWS's own names here.
# ruff: noqa: N802, N803

import datetime
import io
import json
from collections import Counter
from dataclasses import dataclass, field

import botocore.client
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass
class FakeAws:
    """What there is, over all regions.

    Attributes:
        stacks, machines: by identity. buckets: content by key, by name. asked: every call, as service operation.
        refuse: by operation, the code and text of the error it is answered with. broken: by logical name, why this
        resource cannot be made. offline: ranks that never come online. shell: what becomes of lines on a machine:
        status, stdout, stderr.
    """

    regions: tuple = ("eu-west-1", "us-east-1")
    stacks: dict = field(default_factory=dict)
    machines: dict = field(default_factory=dict)
    volumes: dict = field(default_factory=dict)
    buckets: dict = field(default_factory=dict)
    commands: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    told: list = field(default_factory=list)
    refuse: dict = field(default_factory=dict)
    broken: dict = field(default_factory=dict)
    offline: tuple = ()
    undeletable: str = ""
    shell: object = None

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

    def lines(self, rank):
        """All lines of shell that a machine was told."""
        return ["\n".join(lines) for told, lines in self.told if told == rank]

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
        bucket = f"{StackName}-bucket-{len(self.stacks)}"
        self.buckets[bucket] = {}
        stack["Outputs"].append({"OutputKey": "Bucket", "OutputValue": bucket})
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
            "PrivateIpAddress": f"10.80.0.{number + 10}", "InstanceType": "m5.2xlarge", "Rank": rank,
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

    def _DescribeStackResources(self, region, StackName):
        return {"StackResources": []}

    def _DeleteStack(self, region, StackName):
        stack = self.stacks[StackName]
        buckets = [part["OutputValue"] for part in stack["Outputs"] if part["OutputKey"] == "Bucket"]
        full = [name for name in buckets if self.buckets.get(name)]
        if full or self.undeletable:
            stack["StackStatus"] = "DELETE_FAILED"
            stack["Events"].append((self.undeletable or "Bucket", "DELETE_FAILED", "it is not empty, or in use"))
            return {}
        for name in buckets:
            self.buckets.pop(name, None)
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

    # Systems Manager

    def _DescribeInstanceInformation(self, region, Filters):
        ranks = {key: self.machines[key]["Rank"] for key in Filters[0]["Values"]}
        return {
            "InstanceInformationList": [
                {"InstanceId": key, "PingStatus": "ConnectionLost" if rank in self.offline else "Online"}
                for key, rank in ranks.items()
            ]
        }

    def _SendCommand(self, region, InstanceIds, Parameters, **_):
        (identity,) = InstanceIds
        if self.machines[identity]["State"]["Name"] != "running":
            raise refusal("SendCommand", "InvalidInstanceId", f"Instances [{identity}] not in a valid state")
        rank, lines = self.machines[identity]["Rank"], Parameters["commands"]
        self.told.append((rank, lines))
        command = f"{len(self.commands):036d}"
        self.commands[command] = self.shell(rank, "\n".join(lines)) if self.shell else (0, "", "")
        return {"Command": {"CommandId": command}}

    def _GetCommandInvocation(self, region, CommandId, InstanceId):
        status, out, err = self.commands[CommandId]
        return {
            "Status": "Failed" if status else "Success",
            "StandardOutputContent": out,
            "StandardErrorContent": err,
        }

    # S3

    def _PutObject(self, region, Bucket, Key, Body, **_):
        content = Body if isinstance(Body, bytes) else Body.read()
        self.buckets[Bucket][Key] = content
        return {"ETag": etag(content)}

    def _GetObject(self, region, Bucket, Key, **_):
        content = self.buckets[Bucket][Key]
        return {"Body": io.BytesIO(content), "ContentLength": len(content), "ETag": etag(content)}

    def _HeadObject(self, region, Bucket, Key, **_):
        return {"ContentLength": len(self.buckets[Bucket][Key]), "ETag": etag(self.buckets[Bucket][Key])}

    def _ListObjectsV2(self, region, Bucket, Prefix):
        keys = sorted(key for key in self.buckets[Bucket] if key.startswith(Prefix))
        return {"Contents": [{"Key": key, "ETag": etag(self.buckets[Bucket][key])} for key in keys]}

    def _DeleteObject(self, region, Bucket, Key):
        self.buckets[Bucket].pop(Key, None)
        return {}

    def _DeleteObjects(self, region, Bucket, Delete):
        for one in Delete["Objects"]:
            self.buckets[Bucket].pop(one["Key"], None)
        return {}

    def alive(self):
        """What still costs or holds anything: machines, stacks and buckets."""
        machines = [key for key, one in self.machines.items() if one["State"]["Name"] != "terminated"]
        stacks = [one["StackName"] for one in self.stacks.values() if one["StackStatus"] != "DELETE_COMPLETE"]
        return sorted([*machines, *stacks, *self.buckets])

    def times(self, operation):
        """How often an operation was asked for."""
        return Counter(self.asked)[operation]


def refusal(operation, code, text=""):
    """An error as AWS answers."""
    return ClientError({"Error": {"Code": code, "Message": text}}, operation)


def etag(content):
    """A version of content."""
    return f'"{hash(content)}"'


def put_in_place(patch, tmp_path):
    """A `FakeAws` that boto3's clients speak to, with a memory and credentials of its own."""
    fake = FakeAws()
    patch.setattr(botocore.client.BaseClient, "_make_api_call", lambda *call: fake.call(*call))
    nobodys_credentials(patch, tmp_path)
    return fake


def nobodys_credentials(patch, tmp_path):
    """An environment with a region, credentials and a memory of its own, where nothing is waited for."""
    from istbench.aws import waiting

    patch.setattr(waiting, "pause", lambda _: None)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_DEFAULT_REGION"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    patch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    patch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
