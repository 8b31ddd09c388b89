"""The CloudFormation template of a cluster, one stack with all its resources, and the boot script of a machine."""

from typing import Any

from istbench.aws.spec import LEAST_HOURS, MOST_HOURS, ClusterSpec

TAG = "istbench:cluster"
"""The tag of every resource of a cluster; its value is the name of the cluster."""
NODE = "Node"
"""Prefix of the machines' names in the resources and outputs of the stack."""
USER = "istbench"
"""The account on the machines that ssh logs in to. It has no password and no sudo."""
BOOTED = "/var/lib/istbench-booted"
"""A file on a machine whose boot script has succeeded."""
SSH_PORT = 22

# The calls of Systems Manager's agent. AWS accepts no narrower resource for them than "*".
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
_BASE64 = r"[A-Za-z0-9+/]+={0,2}"

# A reboot cancels a `shutdown`, so a timer on the disk backs it up.
_ARM = """\
#!/bin/bash
shutdown -P +${MaxMinutes} 'the hours of this istbench cluster are over'
end=$(date -u -d '+${MaxMinutes} minutes' '+%Y-%m-%d %H:%M:%S UTC')
units=/etc/systemd/system
printf '[Service]\\nType=oneshot\\nExecStart=/sbin/shutdown -P now\\n' > $units/istbench-end.service
printf '[Timer]\\nOnCalendar=%s\\nPersistent=true\\n[Install]\\nWantedBy=timers.target\\n' "$end" \\
    > $units/istbench-end.timer
systemctl daemon-reload
systemctl enable --now istbench-end.timer
"""
# The host key comes first, so every login meets a known host. Group adm may read the log of the boot. Password '*'
# allows none; sshd without PAM refuses the default, '!'.
_LOGIN = f"""\
set -e
key=/etc/ssh/ssh_host_ed25519_key
(umask 077 && base64 -d <<< '${{HostKey}}' > $key)
ssh-keygen -y -f $key > $key.pub
systemctl restart ssh || systemctl restart sshd
useradd --create-home --shell /bin/bash --groups adm --password '*' {USER}
install -d -m 700 -o {USER} -g {USER} /home/{USER}/.ssh
echo '${{UserKey}}' | install -m 600 -o {USER} -g {USER} /dev/stdin /home/{USER}/.ssh/authorized_keys
"""


def stack_name(cluster: str) -> str:
    """The name of a cluster's stack."""
    return f"istbench-{cluster}"


def node_ids(spec: ClusterSpec) -> list[str]:
    """The machines' logical ids, by rank."""
    return [f"{NODE}{rank}" for rank in range(spec.count)]


def user_data(spec: ClusterSpec) -> str:
    """The boot script of a machine, for `Fn::Sub` of CloudFormation, which fills in the parameters of the stack.

    It arms the end of the machine before anything else.
    """
    setup = "\n".join(line.replace("${", "${!") for line in spec.setup)
    return f"{_ARM}{_LOGIN}export DEBIAN_FRONTEND=noninteractive\n{setup}\ntouch {BOOTED}\n"


def template(spec: ClusterSpec, *, ssm: bool = False) -> dict[str, Any]:
    """The template of `spec`, ready for JSON.

    Its parameters hold the end of the cluster and the ssh keys. Parameter `From` is the network that may open ssh
    connections. With `ssm`, no network may, and Systems Manager forwards the connections.
    """
    caller = {
        "From": {
            "Type": "String",
            "AllowedPattern": r"\d{1,3}(\.\d{1,3}){3}/\d{1,2}",
            "Description": "Addresses that may open ssh connections to the machines",
        }
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"istbench cluster {spec.cluster}: {spec.count} x {spec.instance_type}",
        "Parameters": {
            "Image": {"Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", "Default": str(spec.image)},
            "MaxMinutes": {
                "Type": "Number",
                "MinValue": LEAST_HOURS * 60,
                "MaxValue": MOST_HOURS * 60,
                "Description": "Minutes after its boot when a machine ends itself",
            },
            "EndsAt": {
                "Type": "String",
                "AllowedPattern": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
                "Description": "When AWS ends the machines that have not ended themselves, UTC",
            },
            "UserKey": {
                "Type": "String",
                "AllowedPattern": rf"ssh-ed25519 {_BASE64}",
                "Description": "Public key of the user",
            },
            "HostKey": {
                "Type": "String",
                "AllowedPattern": _BASE64,
                "NoEcho": True,
                "Description": "Private host key of the machines, in base64",
            },
            **({} if ssm else caller),
        },
        "Resources": {
            **_network(spec, ssm),
            **(_agent(spec) if ssm else {}),
            **_machines(spec, ssm),
            **_guard(spec),
        },
        "Outputs": {
            "Group": {"Value": _group()},
            **{name: {"Value": _ref(name)} for name in node_ids(spec)},
        },
    }


def _network(spec: ClusterSpec, ssm: bool) -> dict[str, Any]:
    """A separate network with a route to the internet. From outside, only `From` may connect, and only to ssh."""
    zone = {"AvailabilityZone": str(spec.zone)} if spec.zone else {}
    ssh = _resource(
        "EC2::SecurityGroupIngress",
        GroupId=_group(),
        IpProtocol="tcp",
        FromPort=SSH_PORT,
        ToPort=SSH_PORT,
        CidrIp=_ref("From"),
    )
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
            GroupDescription="istbench: machines of the cluster reach one another, and fetch from outside",
            VpcId=_ref("Network"),
            SecurityGroupEgress=[
                {
                    "IpProtocol": "tcp",
                    "FromPort": port,
                    "ToPort": port,
                    "CidrIp": "0.0.0.0/0",
                    "Description": "packages, data and Systems Manager",
                }
                for port in (80, 443)
            ],
            Tags=_tags(spec),
        ),
        **({} if ssm else {"FromUser": ssh}),
        "FromOneAnother": _resource(
            "EC2::SecurityGroupIngress", GroupId=_group(), SourceSecurityGroupId=_group(), **inside
        ),
        "ToOneAnother": _resource(
            "EC2::SecurityGroupEgress", GroupId=_group(), DestinationSecurityGroupId=_group(), **inside
        ),
    }


def _agent(spec: ClusterSpec) -> dict[str, Any]:
    """The role of the machines: their agent may answer Systems Manager."""
    agent = {"Effect": "Allow", "Action": list(AGENT_ACTIONS), "Resource": "*"}
    return {
        "Role": _resource(
            "IAM::Role",
            AssumeRolePolicyDocument=_trust("ec2.amazonaws.com"),
            Policies=[{"PolicyName": "machine", "PolicyDocument": _policy(agent)}],
            Tags=_tags(spec),
        ),
        "Profile": _resource("IAM::InstanceProfile", Roles=[_ref("Role")]),
    }


def _machines(spec: ClusterSpec, ssm: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "ImageId": _ref("Image"),
        "InstanceType": str(spec.instance_type),
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
    if ssm:
        data["IamInstanceProfile"] = {"Arn": _attribute("Profile", "Arn")}
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
    """Schedules of AWS that end the machines, in case one does not end itself."""
    of_this_cluster = {"StringEquals": {f"ec2:ResourceTag/{TAG}": spec.cluster}}
    terminate = {
        "Effect": "Allow",
        "Action": ["ec2:TerminateInstances"],
        "Resource": _sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/*"),
        "Condition": of_this_cluster,
    }
    # One schedule for each machine: AWS ends no machine if a request also names one that has ended long ago.
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
    """A schedule that ends machine `name`."""
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
