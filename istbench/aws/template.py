"""The CloudFormation template of a cluster: everything it is made of, in one stack that can be deleted."""

from typing import Any

from istbench.aws.boot import user_data
from istbench.aws.spec import LEAST_HOURS, MOST_HOURS, ClusterSpec

TAG = "istbench:cluster"
"""The tag that everything of a cluster has; its value is the cluster's name."""
NODE = "Node"
"""What the names of the machines begin with, as resources of the stack and as its outputs."""

# What the agent of Systems Manager calls; AWS knows no narrower resource for these than all.
AGENT_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
)
_SUBNET = "10.80.0.0/24"
_VPC = "10.80.0.0/16"


def stack_name(cluster: str) -> str:
    """The name of a cluster's stack."""
    return f"istbench-{cluster}"


def node_ids(spec: ClusterSpec) -> list[str]:
    """The machines' logical ids, by rank."""
    return [f"{NODE}{rank}" for rank in range(spec.count)]


def template(spec: ClusterSpec) -> dict[str, Any]:
    """The template of `spec`, ready for JSON. Its parameters say when it ends: `MaxMinutes` and `EndsAt`."""
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"istbench cluster {spec.cluster}: {spec.count} x {spec.instance_type}",
        "Parameters": {
            "Image": {"Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", "Default": str(spec.image)},
            "MaxMinutes": {
                "Type": "Number",
                "MinValue": LEAST_HOURS * 60,
                "MaxValue": MOST_HOURS * 60,
                "Description": "Minutes from its boot after which a machine ends itself",
            },
            "EndsAt": {
                "Type": "String",
                "AllowedPattern": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
                "Description": "When AWS ends the machines that have not ended themselves, UTC",
            },
        },
        "Resources": {**_network(spec), **_storage(spec), **_roles(spec), **_machines(spec), **_guard(spec)},
        "Outputs": {
            "Bucket": {"Value": _ref("Bucket")},
            **{name: {"Value": _ref(name)} for name in node_ids(spec)},
        },
    }


def _network(spec: ClusterSpec) -> dict[str, Any]:
    """A network of its own, with a way out. Nobody outside can open a connection to a machine."""
    zone = {"AvailabilityZone": str(spec.zone)} if spec.zone else {}
    inside = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535}
    return {
        "Network": _resource(
            "EC2::VPC", CidrBlock=_VPC, EnableDnsSupport=True, EnableDnsHostnames=True, Tags=_tags(spec)
        ),
        "Gateway": _resource("EC2::InternetGateway", Tags=_tags(spec)),
        "GatewayAttachment": _resource(
            "EC2::VPCGatewayAttachment", VpcId=_ref("Network"), InternetGatewayId=_ref("Gateway")
        ),
        "Subnet": _resource("EC2::Subnet", VpcId=_ref("Network"), CidrBlock=_SUBNET, Tags=_tags(spec), **zone),
        "Routes": _resource("EC2::RouteTable", VpcId=_ref("Network"), Tags=_tags(spec)),
        "WayOut": {
            **_resource(
                "EC2::Route",
                RouteTableId=_ref("Routes"),
                DestinationCidrBlock="0.0.0.0/0",
                GatewayId=_ref("Gateway"),
            ),
            "DependsOn": "GatewayAttachment",
        },
        "SubnetRoutes": _resource(
            "EC2::SubnetRouteTableAssociation", SubnetId=_ref("Subnet"), RouteTableId=_ref("Routes")
        ),
        "Group": _resource(
            "EC2::SecurityGroup",
            GroupDescription="istbench: machines of the cluster talk to one another, and fetch from outside",
            VpcId=_ref("Network"),
            SecurityGroupEgress=[
                {
                    "IpProtocol": "tcp",
                    "FromPort": port,
                    "ToPort": port,
                    "CidrIp": "0.0.0.0/0",
                    "Description": "packages, Systems Manager and the bucket",
                }
                for port in (80, 443)
            ],
            Tags=_tags(spec),
        ),
        "FromOneAnother": _resource(
            "EC2::SecurityGroupIngress", GroupId=_group(), SourceSecurityGroupId=_group(), **inside
        ),
        "ToOneAnother": _resource(
            "EC2::SecurityGroupEgress", GroupId=_group(), DestinationSecurityGroupId=_group(), **inside
        ),
    }


def _storage(spec: ClusterSpec) -> dict[str, Any]:
    """The bucket through which istbench reaches the machines and results come back; nothing in it is public."""
    everything = [_attribute("Bucket", "Arn"), _sub("${Bucket.Arn}/*")]
    return {
        "Bucket": _resource(
            "S3::Bucket",
            BucketEncryption={
                "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
            },
            PublicAccessBlockConfiguration={
                "BlockPublicAcls": True,
                "BlockPublicPolicy": True,
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
            OwnershipControls={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            Tags=_tags(spec),
        ),
        "BucketPolicy": _resource(
            "S3::BucketPolicy",
            Bucket=_ref("Bucket"),
            PolicyDocument=_policy(
                {
                    "Effect": "Deny",
                    "Principal": "*",
                    "Action": "s3:*",
                    "Resource": everything,
                    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                }
            ),
        ),
    }


def _roles(spec: ClusterSpec) -> dict[str, Any]:
    """What a machine may do: answer Systems Manager, and use the cluster's own bucket."""
    agent = {"Effect": "Allow", "Action": list(AGENT_ACTIONS), "Resource": "*"}
    objects = {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
        "Resource": _sub("${Bucket.Arn}/*"),
    }
    listing = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": _attribute("Bucket", "Arn")}
    return {
        "Role": _resource(
            "IAM::Role",
            AssumeRolePolicyDocument=_trust("ec2.amazonaws.com"),
            Policies=[{"PolicyName": "machine", "PolicyDocument": _policy(agent, objects, listing)}],
            Tags=_tags(spec),
        ),
        "Profile": _resource("IAM::InstanceProfile", Roles=[_ref("Role")]),
    }


def _machines(spec: ClusterSpec) -> dict[str, Any]:
    data: dict[str, Any] = {
        "ImageId": _ref("Image"),
        "InstanceType": str(spec.instance_type),
        "IamInstanceProfile": {"Arn": _attribute("Profile", "Arn")},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "AssociatePublicIpAddress": True,
                "DeleteOnTermination": True,
                "SubnetId": _ref("Subnet"),
                "Groups": [_group()],
            }
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": str(spec.root_device),
                "Ebs": {
                    "VolumeSize": spec.volume_gib,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": _tags(spec)} for kind in ("instance", "volume", "network-interface")
        ],
        "UserData": {"Fn::Base64": _sub(user_data(spec))},
    }
    if spec.spot:
        once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        data["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
    made: dict[str, Any] = {}
    if spec.placement_group:
        made["Placement"] = _resource("EC2::PlacementGroup", Strategy="cluster", Tags=_tags(spec))
        data["Placement"] = {"GroupName": _ref("Placement")}
    made["Machine"] = _resource(
        "EC2::LaunchTemplate",
        LaunchTemplateData=data,
        TagSpecifications=[{"ResourceType": "launch-template", "Tags": _tags(spec)}],
    )
    latest = {"LaunchTemplateId": _ref("Machine"), "Version": _attribute("Machine", "LatestVersionNumber")}
    for rank, name in enumerate(node_ids(spec)):
        tags = [*_tags(spec), {"Key": "istbench:rank", "Value": str(rank)}]
        node = _resource("EC2::Instance", LaunchTemplate=latest, Tags=tags)
        made[name] = {**node, "DependsOn": ["WayOut", "SubnetRoutes", "FromOneAnother", "ToOneAnother"]}
    return made


def _guard(spec: ClusterSpec) -> dict[str, Any]:
    """Schedules that end the machines from outside, should one of them not end itself."""
    of_this_cluster = {"StringEquals": {f"ec2:ResourceTag/{TAG}": spec.cluster}}
    terminate = {
        "Effect": "Allow",
        "Action": ["ec2:TerminateInstances"],
        "Resource": _sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/*"),
        "Condition": of_this_cluster,
    }
    # One for each: of a request that names a machine which has ended, AWS ends none.
    guards = {f"Guard{rank}": _schedule(name) for rank, name in enumerate(node_ids(spec))}
    return {
        "GuardRole": _resource(
            "IAM::Role",
            AssumeRolePolicyDocument=_trust("scheduler.amazonaws.com"),
            Policies=[{"PolicyName": "guard", "PolicyDocument": _policy(terminate)}],
            Tags=_tags(spec),
        ),
        **guards,
    }


def _schedule(name: str) -> dict[str, Any]:
    """One that ends machine `name`."""
    return _resource(
        "Scheduler::Schedule",
        ScheduleExpression=_sub("at(${EndsAt})"),
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={
            "Arn": _sub("arn:${AWS::Partition}:scheduler:::aws-sdk:ec2:terminateInstances"),
            "RoleArn": _attribute("GuardRole", "Arn"),
            "Input": _sub(f'{{"InstanceIds":["${{{name}}}"]}}'),
        },
    )


def _resource(kind: str, **properties: Any) -> dict[str, Any]:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def _tags(spec: ClusterSpec) -> list[dict[str, str]]:
    return [{"Key": TAG, "Value": spec.cluster}, {"Key": "Name", "Value": stack_name(spec.cluster)}]


def _policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _trust(service: str) -> dict[str, Any]:
    return _policy({"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"})


def _group() -> dict[str, Any]:
    return _attribute("Group", "GroupId")


def _ref(name: str) -> dict[str, Any]:
    return {"Ref": name}


def _attribute(name: str, attribute: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [name, attribute]}


def _sub(text: str) -> dict[str, Any]:
    return {"Fn::Sub": text}
