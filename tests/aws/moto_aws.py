"""moto's server behind boto3's own clients, adapted where moto differs from AWS."""

import io
import json
import urllib.request
from collections import Counter

from botocore.awsrequest import AWSResponse

from istbench.aws import session
from istbench.aws.session import Aws
from istbench.aws.spec import ImageParameter

REGION = "us-east-1"
HERE = Aws(REGION)
# moto has Amazon's public images, and not Canonical's.
IMAGE = ImageParameter("/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64")
# moto's CloudFormation skips the first three, and creates the others, but never deletes them.
NOT_MOTOS = {
    "EC2::SecurityGroupEgress", "EC2::PlacementGroup", "Scheduler::Schedule",
    "EC2::InternetGateway", "EC2::VPCGatewayAttachment", "EC2::RouteTable", "EC2::Route",
    "EC2::SubnetRouteTableAssociation",
}  # fmt: skip
_OF_A_MACHINE = ("ImageId", "InstanceType", "UserData", "BlockDeviceMappings")


def as_moto_can(template):
    """A template without the resources that moto cannot create.

    The machines have the values of the launch template, which moto ignores.
    """
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
            resource["Properties"] = {
                **of_a_machine,
                "SubnetId": {"Ref": "Subnet"},
                "Tags": resource["Properties"]["Tags"],
            }
        resource["DependsOn"] = [name for name in resource.get("DependsOn", []) if name in made]
    # moto cannot evaluate Fn::GetAtt of a resource that it did not create.
    outputs = {**template["Outputs"], "Group": {"Value": {"Ref": "Group"}}}
    return {**template, "Resources": made, "Outputs": outputs}


class MotoAws:
    """The calls of boto3 to moto's server.

    Attributes:
        asked: every operation, in order. refused: the place in `asked` of the one that AWS refuses; None for none.
        clean: the inventory before any cluster.
    """

    def __init__(self, url):
        self.url = url
        self.asked = []
        self.refused = None
        for service in ("cloudformation", "ec2", "resourcegroupstaggingapi"):
            events = HERE.client(service).meta.events
            events.register("before-send", self._before_send)
        events = HERE.client("cloudformation").meta.events
        events.register("provide-client-params.cloudformation.CreateStack", _offer_what_moto_can)
        events.register("after-call.cloudformation.DescribeStacks", _without_outputs_of_half_a_stack)
        HERE.client("ec2").meta.events.register("after-call.ec2.DescribeInstances", _with_public_addresses)
        self.clean = inventory()

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
            return answer(request, 403, _refusals()[service])
        return None


def _offer_what_moto_can(params, **_):
    return {**params, "TemplateBody": json.dumps(as_moto_can(json.loads(params["TemplateBody"])))}


def _without_outputs_of_half_a_stack(parsed, **_):
    for stack in parsed.get("Stacks", []):
        if stack["StackStatus"] == "CREATE_IN_PROGRESS":
            stack["Outputs"] = []


def _with_public_addresses(parsed, **_):
    """moto gives none to the machines of a stack; here they end like the private ones."""
    for group in parsed.get("Reservations", []):
        for machine in group["Instances"]:
            machine["PublicIpAddress"] = f"203.0.113.{machine.get('PrivateIpAddress', '0').rpartition('.')[2]}"


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
        "resource-groups-tagging-api": in_json,
    }


class _Raw(io.BytesIO):
    def stream(self, **_):
        yield self.read()


def answer(request, status, text):
    """What a client gets in the place of what the network would have brought."""
    return AWSResponse(request.url, status, {}, _Raw(text.encode()))


def inventory():
    """The number of resources of each kind."""
    ec2, iam = HERE.client("ec2"), HERE.client("iam")
    machines = [one for group in ec2.describe_instances()["Reservations"] for one in group["Instances"]]
    return +Counter(
        stack=len(HERE.client("cloudformation").describe_stacks()["Stacks"]),
        machine=sum(one["State"]["Name"] != "terminated" for one in machines),
        disk=len(ec2.describe_volumes()["Volumes"]),
        network=len(ec2.describe_vpcs()["Vpcs"]),
        group=len(ec2.describe_security_groups()["SecurityGroups"]),
        launch_template=len(ec2.describe_launch_templates()["LaunchTemplates"]),
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
