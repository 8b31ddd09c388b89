"""moto's server behind boto3's own clients, and in one place what moto lacks of what AWS does."""

import io
import json
import urllib.request
from collections import Counter

import boto3
from botocore.awsrequest import AWSResponse

from istbench.aws import session
from istbench.aws.session import Aws
from istbench.aws.spec import ImageParameter

REGION = "us-east-1"
HERE = Aws(REGION)
# moto has Amazon's public images, and not Canonical's.
IMAGE = ImageParameter("/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64")
# moto's CloudFormation skips the first four, and makes the others, but never deletes them.
NOT_MOTOS = {
    "EC2::SecurityGroupEgress", "EC2::PlacementGroup", "S3::BucketPolicy", "Scheduler::Schedule",
    "EC2::InternetGateway", "EC2::VPCGatewayAttachment", "EC2::RouteTable", "EC2::Route",
    "EC2::SubnetRouteTableAssociation",
}  # fmt: skip
_OF_A_MACHINE = ("ImageId", "InstanceType", "UserData", "BlockDeviceMappings")


def as_moto_can(template):
    """A template without what moto cannot make; machines have what the launch template says, which moto ignores."""
    made = {
        name: resource
        for name, resource in template["Resources"].items()
        if resource["Type"].removeprefix("AWS::") not in NOT_MOTOS
    }
    data = made["Machine"]["Properties"]["LaunchTemplateData"]
    data.pop("Placement", None)
    of_a_machine = {key: data[key] for key in _OF_A_MACHINE}
    for resource in made.values():
        if resource["Type"] == "AWS::EC2::Instance":
            own = {"SubnetId": {"Ref": "Subnet"}, "IamInstanceProfile": {"Ref": "Profile"}}
            resource["Properties"] = {**of_a_machine, **own, "Tags": resource["Properties"]["Tags"]}
        resource["DependsOn"] = [name for name in resource.get("DependsOn", []) if name in made]
    return {**template, "Resources": made}


class MotoAws:
    """What passes between boto3 and moto's server.

    Attributes:
        asked: every operation, in order. refused: the place in `asked` of the one that AWS refuses; None for none.
        machines_s3: the bucket's client as a machine has it, which is never refused.
        clean: what there is before any cluster.
    """

    def __init__(self, url):
        self.url = url
        self.asked = []
        self.refused = None
        self.machines_s3 = boto3.client("s3", region_name=REGION)
        for service in ("cloudformation", "ec2", "s3", "ssm", "resourcegroupstaggingapi"):
            events = HERE.client(service).meta.events
            events.register("before-send", self._before_send)
        events = HERE.client("cloudformation").meta.events
        events.register("provide-client-params.cloudformation.CreateStack", _offer_what_moto_can)
        events.register("after-call.cloudformation.DescribeStacks", _without_outputs_of_half_a_stack)
        events.register("after-call.cloudformation.DescribeStackResources", _without_what_was_not_made)
        self.clean = inventory()

    def leave_results(self):
        """Do what a machine does when it has results; returns whether there is a bucket for them."""
        buckets = [one["Name"] for one in self.machines_s3.list_buckets()["Buckets"]]
        for bucket in buckets:
            self.machines_s3.put_object(Bucket=bucket, Key="results/a/run.json", Body=b"{}")
        return bool(buckets)

    def forget_the_ended(self):
        """Drop machines that have ended, which moto lists for ever: each makes the next list slower."""
        from moto.backends import get_backend

        for regions in get_backend("ec2").values():
            regions[REGION].reservations.clear()

    def forget(self):
        """Drop everything that was made."""
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()

    def _before_send(self, request, event_name, **_):
        _, service, operation = event_name.split(".")
        self.asked.append(operation)
        if self.refused == len(self.asked) - 1:
            return answer(request, 403, "" if request.method == "HEAD" else _refusals()[service])
        if operation == "DescribeInstanceInformation":
            (asked,) = json.loads(request.body)["Filters"]
            online = [{"InstanceId": identity, "PingStatus": "Online"} for identity in asked["Values"]]
            return answer(request, 200, json.dumps({"InstanceInformationList": online}))
        return None


def _offer_what_moto_can(params, **_):
    return {**params, "TemplateBody": json.dumps(as_moto_can(json.loads(params["TemplateBody"])))}


def _without_outputs_of_half_a_stack(parsed, **_):
    for stack in parsed.get("Stacks", []):
        if stack["StackStatus"] == "CREATE_IN_PROGRESS":
            stack["Outputs"] = []


def _without_what_was_not_made(parsed, **_):
    parsed["StackResources"] = [one for one in parsed.get("StackResources", []) if "LogicalResourceId" in one]


def refuse_resource(patch, name):
    """Have moto fail at the resource of logical id `name`, and leave what was made before it."""
    from moto.cloudformation import parsing
    from moto.cloudformation.exceptions import ValidationError

    making, refused = parsing.parse_and_create_resource, []

    def make(logical_id, *given, **more):
        if not refused and logical_id != name:
            return making(logical_id, *given, **more)
        if not refused:
            refused.append(name)
            raise ValidationError(message=f"{name}: no")
        return None  # moto would make the rest when it is looked at

    patch.setattr(parsing, "parse_and_create_resource", make)


def _refusals():
    """AWS's refusal as each service words it."""
    said = "<Code>AccessDenied</Code><Message>not authorized to perform: this</Message>"
    in_json = json.dumps({"__type": "AccessDenied", "message": "not authorized to perform: this"})
    return {
        "cloudformation": f"<ErrorResponse><Error><Type>Sender</Type>{said}</Error></ErrorResponse>",
        "ec2": f"<Response><Errors><Error>{said}</Error></Errors></Response>",
        "s3": f"<Error>{said}</Error>",
        "ssm": in_json,
        "resource-groups-tagging-api": in_json,
    }


class _Raw(io.BytesIO):
    def stream(self, **_):
        yield self.read()


def answer(request, status, text):
    """What a client gets in the place of what the network would have brought."""
    return AWSResponse(request.url, status, {}, _Raw(text.encode()))


def inventory():
    """How many of each thing there are that a cluster is made of."""
    ec2, iam = HERE.client("ec2"), HERE.client("iam")
    machines = [one for group in ec2.describe_instances()["Reservations"] for one in group["Instances"]]
    return +Counter(
        stack=len(HERE.client("cloudformation").describe_stacks()["Stacks"]),
        machine=sum(one["State"]["Name"] != "terminated" for one in machines),
        disk=len(ec2.describe_volumes()["Volumes"]),
        network=len(ec2.describe_vpcs()["Vpcs"]),
        group=len(ec2.describe_security_groups()["SecurityGroups"]),
        launch_template=len(ec2.describe_launch_templates()["LaunchTemplates"]),
        bucket=len(HERE.client("s3").list_buckets()["Buckets"]),
        role=len(iam.list_roles()["Roles"]),
        profile=len(iam.list_instance_profiles()["InstanceProfiles"]),
    )


def serve(patch):
    """Start moto's server for clients of boto3 that are new; returns what passes, and the server, to be stopped."""
    from moto import backends
    from moto.server import ThreadedMotoServer

    services = list(backends.list_of_moto_modules())
    patch.setattr(backends, "list_of_moto_modules", lambda: services)  # moto walks its folders at every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    patch.setenv("AWS_ENDPOINT_URL", url)
    patch.setenv("NO_PROXY", host)
    session._client.cache_clear()
    return MotoAws(url), server
