"""A cluster's stack at CloudFormation: made, looked at, deleted."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from istbench.aws.session import Aws, calls, error_code
from istbench.aws.spec import ClusterSpec
from istbench.aws.template import NODE, TAG, stack_name, template
from istbench.aws.waiting import wait_for
from istbench.errors import RunFailed

Say = Callable[[str], None]
_EVERY_S, _MAKING_S, _DELETING_S = 5.0, 1800.0, 1800.0
# What AWS says of a resource it could not make, and the way out.
_WAYS_OUT = (
    (
        ("InsufficientInstanceCapacity", "sufficient capacity", "no Spot capacity"),
        "AWS has no such machines free: another `zone` or region, fewer, spot the other way, or later",
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
        "docs/aws.md lists the permissions needed",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack as AWS has it.

    `identity` still names it when it is deleted. `ends`: when AWS ends its machines, UTC, as it was told.
    """

    cluster: str
    identity: str
    status: str
    began: datetime
    outputs: dict[str, str]
    ends: str

    @property
    def complete(self) -> bool:
        """Whether all of it was made."""
        return self.status == "CREATE_COMPLETE"

    @property
    def count(self) -> int:
        """How many machines it was made with."""
        return sum(name.startswith(NODE) for name in self.outputs)


def create_stack(aws: Aws, spec: ClusterSpec, max_hours: float, ends: datetime) -> str:
    """Ask for the stack of `spec`, and return its identity; what fails in it is rolled back and deleted by AWS.

    Raises:
        RunFailed: where AWS refuses.
    """
    with calls(f"to make cluster {spec.cluster} in {aws.region}"):
        answer = aws.client("cloudformation").create_stack(
            StackName=stack_name(spec.cluster),
            TemplateBody=json.dumps(template(spec), separators=(",", ":")),
            Parameters=[
                {"ParameterKey": "MaxMinutes", "ParameterValue": str(round(max_hours * 60))},
                {"ParameterKey": "EndsAt", "ParameterValue": ends.strftime("%Y-%m-%dT%H:%M:%S")},
            ],
            Capabilities=["CAPABILITY_IAM"],
            OnFailure="DELETE",
            TimeoutInMinutes=30,
            Tags=[{"Key": TAG, "Value": spec.cluster}],
        )
    return str(answer["StackId"])


def find_stack(aws: Aws, cluster: str) -> Stack | None:
    """The stack of a cluster; None where there is none."""
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
    """A stack from AWS's description."""
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


def wait_until_made(aws: Aws, cluster: str, identity: str, say: Say) -> Stack:
    """The stack of that identity, once it is complete.

    Raises:
        RunFailed: where it failed, which says why and the way out; AWS deletes what there was of it.
    """
    said: set[str] = set()

    def made() -> Stack | None:
        with calls(f"for cluster {cluster} in {aws.region}"):
            now = as_stack(aws.client("cloudformation").describe_stacks(StackName=identity)["Stacks"][0])
        if now.complete:
            return now
        if now.status != "CREATE_IN_PROGRESS":
            raise RunFailed(_why_failed(aws, cluster, identity))
        if now.status not in said:
            said.add(now.status)
            say(f"AWS makes the stack {stack_name(cluster)}")
        return None

    return wait_for(made, _EVERY_S, _MAKING_S, f"cluster {cluster} was not made")


def bucket_of(aws: Aws, stack: Stack) -> str | None:
    """The bucket of a stack, also of a half-made one; None where it has none."""
    if "Bucket" in stack.outputs:
        return stack.outputs["Bucket"]
    with calls(f"for the bucket of cluster {stack.cluster}"):
        listed = aws.client("cloudformation").describe_stack_resources(StackName=stack.identity)["StackResources"]
    names = [
        part.get("PhysicalResourceId")
        for part in listed
        if part["LogicalResourceId"] == "Bucket" and part["ResourceStatus"] != "DELETE_COMPLETE"
    ]
    return names[0] if names and names[0] else None


def delete_stack(aws: Aws, stack: Stack) -> None:
    """Have a stack deleted, and return when it is.

    Raises:
        RunFailed: where something of it could not be deleted, naming it.
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
    way = ways[0] if ways else "mend the spec"
    return f"cluster {cluster} was not made, and AWS takes back what there was of it: {failed}; {way}"


def _first_failure(aws: Aws, identity: str, status: str) -> str:
    """The resource that failed first, and why: the others were given up for it."""
    with calls("why a stack failed"):
        pages = aws.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=identity)
        failed = [event for page in pages for event in page["StackEvents"] if event["ResourceStatus"] == status]
    told = [event for event in failed if "cancelled" not in event.get("ResourceStatusReason", "cancelled")]
    if not told:
        return "AWS does not say why"
    first = told[-1]  # AWS tells the latest first
    return f"{first['LogicalResourceId']}: {' '.join(first['ResourceStatusReason'].split())[:300]}"
