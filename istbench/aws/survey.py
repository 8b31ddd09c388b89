"""The clusters in a region, and resources there that are left of deleted clusters."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from istbench.aws.machines import Machine, find_machines
from istbench.aws.session import Aws, calls
from istbench.aws.stack import Stack, as_stack
from istbench.aws.template import TAG
from istbench.base.errors import RunFailed, printable

# Found by other calls: AWS lists deleted ones by their tags for some minutes.
_LISTED_APART = (":instance/", ":volume/", ":network-interface/", ":stack/")


@dataclass(frozen=True, kw_only=True)
class RegionSurvey:
    """The clusters of one region.

    Attributes:
        stacks: by cluster. machines: by cluster. left_over: resources without a stack, by cluster.
        problem: why AWS did not list the region; else empty.
    """

    name: str
    stacks: dict[str, Stack]
    machines: dict[str, list[Machine]]
    left_over: dict[str, list[str]]
    problem: str = ""

    @property
    def clusters(self) -> list[str]:
        """Names of all clusters with a stack, a machine or a left-over resource."""
        return sorted({*self.stacks, *self.machines, *self.left_over})


def regions_of_account(aws: Aws) -> list[str]:
    """The regions that the account may use."""
    with calls("for the regions"):
        listed = aws.client("ec2").describe_regions()["Regions"]
    return sorted(region["RegionName"] for region in listed)


def survey(regions: Sequence[str]) -> list[RegionSurvey]:
    """Survey `regions`, all at the same time."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(_look, regions))


def left_over(aws: Aws, stacks: Sequence[str], machines: dict[str, list[Machine]]) -> dict[str, list[str]]:
    """Resources with the tag of a cluster that has no stack: identities and names, by cluster."""
    found: dict[str, list[str]] = {}
    for name, listed in machines.items():
        if name not in stacks:
            found[name] = [f"instance {machine.identity} ({machine.state})" for machine in listed]
    for name, volume in _volumes(aws):
        if name not in stacks:
            found.setdefault(name, []).append(f"volume {volume}")
    with calls(f"for tagged resources in {aws.region}"):
        client = aws.client("resourcegroupstaggingapi")
        pages = client.get_paginator("get_resources").paginate(TagFilters=[{"Key": TAG}])
        tagged = [entry for page in pages for entry in page["ResourceTagMappingList"]]
    for entry in tagged:
        name = next((tag["Value"] for tag in entry["Tags"] if tag["Key"] == TAG), "")
        identity = entry["ResourceARN"]
        if name and name not in stacks and not any(kind in identity for kind in _LISTED_APART):
            found.setdefault(name, []).append(identity)
    return found


def _look(region: str) -> RegionSurvey:
    aws = Aws(region)
    try:
        stacks = _stacks(aws)
        machines = find_machines(aws)
        remains = left_over(aws, list(stacks), machines)
    except RunFailed as error:
        return RegionSurvey(name=region, stacks={}, machines={}, left_over={}, problem=printable(str(error)))
    return RegionSurvey(name=region, stacks=stacks, machines=machines, left_over=remains)


def _stacks(aws: Aws) -> dict[str, Stack]:
    with calls(f"for clusters in {aws.region}"):
        pages = aws.client("cloudformation").get_paginator("describe_stacks").paginate()
        found = [as_stack(described) for page in pages for described in page["Stacks"]]
    return {stack.cluster: stack for stack in found if stack.cluster and stack.status != "DELETE_COMPLETE"}


def _volumes(aws: Aws) -> list[tuple[str, str]]:
    """Disks without a machine, with their clusters."""
    filters = [{"Name": f"tag:{TAG}", "Values": ["*"]}, {"Name": "status", "Values": ["available"]}]
    with calls(f"for disks in {aws.region}"):
        pages = aws.client("ec2").get_paginator("describe_volumes").paginate(Filters=filters)
        listed = [volume for page in pages for volume in page["Volumes"]]
    return [
        (tag["Value"], volume["VolumeId"])
        for volume in listed
        for tag in volume.get("Tags", [])
        if tag["Key"] == TAG
    ]
