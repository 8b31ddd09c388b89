"""The stack of a cluster at CloudFormation: created, described, deleted."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from istbench.aws.local_files import Keys
from istbench.aws.session import Aws, calls, error_code, wait_for
from istbench.aws.spec import ClusterSpec
from istbench.aws.template import NODE, TAG, stack_name, template
from istbench.base.errors import RunFailed

Say = Callable[[str], None]
_EVERY_S, _MAKING_S, _DELETING_S = 5.0, 1800.0, 1800.0
# Words in AWS's reason for a resource that it could not create, and the way out.
_WAYS_OUT = (
    (
        ("InsufficientInstanceCapacity", "sufficient capacity", "no Spot capacity"),
        "AWS has no such machines free: use another `zone` or region, change `spot`, use fewer, or try later",
    ),
    (
        ("VcpuLimitExceeded", "vCPU capacity", "MaxSpotInstanceCount", "LimitExceeded", "limit exceeded", "quota"),
        "your quota is too small: ask for more under Service Quotas, or use fewer machines",
    ),
    (
        ("Availability Zone", "AvailabilityZone"),
        "name a zone that has these machines: `zone` in the spec",
    ),
    (
        ("not authorized", "UnauthorizedOperation", "AccessDenied"),
        "docs/aws.md lists the permissions",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack as AWS describes it.

    Attributes:
        identity: its id, which stays valid after its deletion. ends: time in UTC when AWS ends its machines.
    """

    cluster: str
    identity: str
    status: str
    began: datetime
    outputs: dict[str, str]
    ends: str

    @property
    def complete(self) -> bool:
        """Whether AWS has created all of it."""
        return self.status == "CREATE_COMPLETE"

    @property
    def count(self) -> int:
        """The number of machines that it was created with."""
        return sum(name.startswith(NODE) for name in self.outputs)

    @property
    def group(self) -> str:
        """The id of the machines' security group."""
        return self.outputs.get("Group", "")


def create_stack(
    aws: Aws, spec: ClusterSpec, max_hours: float, ends: datetime, keys: Keys, network: str | None
) -> str:
    """Request the stack of `spec`, and return its identity. If a resource fails, AWS deletes the stack.

    Args:
        network: the addresses that may open ssh connections; None sends them through Systems Manager.

    Raises:
        RunFailed: if AWS refuses.
    """
    parameters = {
        "MaxMinutes": str(round(max_hours * 60)),
        "EndsAt": ends.strftime("%Y-%m-%dT%H:%M:%S"),
        "UserKey": keys.user,
        "HostKey": keys.host,
        **({"From": network} if network else {}),
    }
    body = template(spec, ssm=network is None)
    with calls(f"to create cluster {spec.cluster} in {aws.region}"):
        answer = aws.client("cloudformation").create_stack(
            StackName=stack_name(spec.cluster),
            TemplateBody=json.dumps(body, separators=(",", ":")),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            Capabilities=["CAPABILITY_IAM"],
            OnFailure="DELETE",
            TimeoutInMinutes=30,
            Tags=[{"Key": TAG, "Value": spec.cluster}],
        )
    return str(answer["StackId"])


def find_stack(aws: Aws, cluster: str) -> Stack | None:
    """The stack of a cluster; None if there is none."""
    from botocore.exceptions import ClientError

    with calls(f"for cluster {cluster} in {aws.region}"):
        try:
            found = aws.client("cloudformation").describe_stacks(StackName=stack_name(cluster))["Stacks"]
        except ClientError as error:
            if error_code(error) == "ValidationError" and "does not exist" in str(error):
                return None
            raise
    return as_stack(found[0])


def as_stack(described: dict[str, Any]) -> Stack:
    """Read AWS's description of a stack."""
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
    parameters = described.get("Parameters", [])
    return Stack(
        cluster=tags.get(TAG, ""),
        identity=described["StackId"],
        status=described["StackStatus"],
        began=described["CreationTime"],
        outputs={part["OutputKey"]: part["OutputValue"] for part in described.get("Outputs", [])},
        ends=next((part["ParameterValue"] for part in parameters if part["ParameterKey"] == "EndsAt"), ""),
    )


def wait_until_complete(aws: Aws, cluster: str, identity: str, say: Say) -> Stack:
    """Return the stack when AWS has created all of it.

    Raises:
        RunFailed: if it failed, with the reason and the way out; AWS deletes the rest of it.
    """
    said: set[str] = set()

    def complete() -> Stack | None:
        with calls(f"for cluster {cluster} in {aws.region}"):
            now = as_stack(aws.client("cloudformation").describe_stacks(StackName=identity)["Stacks"][0])
        if now.complete:
            return now
        if now.status != "CREATE_IN_PROGRESS":
            raise RunFailed(_why_failed(aws, cluster, identity))
        if now.status not in said:
            said.add(now.status)
            say(f"AWS creates the stack {stack_name(cluster)}")
        return None

    return wait_for(complete, _EVERY_S, _MAKING_S, f"cluster {cluster} was not created")


def delete_stack(aws: Aws, stack: Stack) -> None:
    """Delete a stack, and return when it is gone.

    Raises:
        RunFailed: naming the resource that AWS could not delete.
    """
    with calls(f"to delete cluster {stack.cluster} in {aws.region}"):
        aws.client("cloudformation").delete_stack(StackName=stack.identity)

    def gone() -> bool | None:
        with calls(f"for cluster {stack.cluster} in {aws.region}"):
            listed = aws.client("cloudformation").describe_stacks(StackName=stack.identity)["Stacks"]
        status = listed[0]["StackStatus"]
        if status == "DELETE_FAILED":
            failed = _first_failure(aws, stack.identity, "DELETE_FAILED")
            raise RunFailed(f"cluster {stack.cluster} was not deleted: {failed}; run `istbench aws down` again")
        return True if status == "DELETE_COMPLETE" else None

    wait_for(gone, _EVERY_S, _DELETING_S, f"cluster {stack.cluster} was not deleted")


def _why_failed(aws: Aws, cluster: str, identity: str) -> str:
    failed = _first_failure(aws, identity, "CREATE_FAILED")
    ways = [way for words, way in _WAYS_OUT if any(word.lower() in failed.lower() for word in words)]
    way = ways[0] if ways else "correct the spec"
    return f"cluster {cluster} was not created, and AWS deletes the rest of it: {failed}; {way}"


def _first_failure(aws: Aws, identity: str, status: str) -> str:
    """The first resource that failed, with AWS's reason; AWS cancels the others because of it."""
    with calls("why a stack failed"):
        pages = aws.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=identity)
        failed = [event for page in pages for event in page["StackEvents"] if event["ResourceStatus"] == status]
    told = [event for event in failed if "cancelled" not in event.get("ResourceStatusReason", "cancelled")]
    if not told:
        return "AWS gives no reason"
    first = told[-1]  # AWS lists the latest first
    return f"{first['LogicalResourceId']}: {' '.join(first['ResourceStatusReason'].split())[:300]}"
