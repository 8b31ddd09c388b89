"""The machines of a cluster: listed and ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from istbench.aws.session import Aws, calls, wait_for
from istbench.aws.template import TAG

_EVERY_S, _ENDING_S = 5.0, 900.0
UP = ("pending", "running")
"""States of a machine that works, or soon will."""
ENDING = "shutting-down"
"""State of a machine that AWS ends."""
_ALIVE = (*UP, "stopping", "stopped", ENDING)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of a cluster.

    Attributes:
        identity: its instance id. rank: its number in the cluster. state: as AWS names it. kind: its instance type.
        address: its address in the network of the cluster. public: its address for others, empty if it has none.
    """

    identity: str
    rank: int
    state: str
    address: str
    kind: str
    public: str = ""

    def host(self, cluster: str) -> str:
        """Its name for ssh."""
        return f"{cluster}-{self.rank}"

    def __str__(self) -> str:
        return f"machine {self.rank} ({self.identity})"


def find_machines(aws: Aws, cluster: str | None = None, states: Sequence[str] = _ALIVE) -> dict[str, list[Machine]]:
    """The machines of one cluster or of all, by cluster and then by rank: those in one of `states`, by default all
    that AWS has not ended.
    """
    filters = [
        {"Name": f"tag:{TAG}", "Values": [cluster or "*"]},
        {"Name": "instance-state-name", "Values": list(states)},
    ]
    with calls(f"for machines in {aws.region}"):
        pages = aws.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
        listed = [instance for page in pages for group in page["Reservations"] for instance in group["Instances"]]
    found: dict[str, list[Machine]] = {}
    for instance in listed:
        tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
        found.setdefault(tags.get(TAG, ""), []).append(_machine(instance, tags))
    return {name: sorted(listed, key=lambda machine: machine.rank) for name, listed in found.items()}


def _machine(instance: dict[str, Any], tags: Mapping[str, str]) -> Machine:
    rank = tags.get("istbench:rank", "")
    return Machine(
        identity=instance["InstanceId"],
        rank=int(rank) if rank.isdecimal() else 0,
        state=instance["State"]["Name"],
        address=instance.get("PrivateIpAddress", ""),
        kind=instance.get("InstanceType", ""),
        public=instance.get("PublicIpAddress", ""),
    )


def end_machines(aws: Aws, machines: Sequence[Machine]) -> None:
    """Terminate `machines`, and return when AWS has ended them."""
    if not machines:
        return
    identities = [machine.identity for machine in machines]
    ec2 = aws.client("ec2")
    with calls(f"to end {len(identities)} machines in {aws.region}"):
        ec2.terminate_instances(InstanceIds=identities)

    def ended() -> bool | None:
        with calls(f"for machines in {aws.region}"):
            pages = ec2.get_paginator("describe_instances").paginate(InstanceIds=identities)
            states = [
                instance["State"]["Name"]
                for page in pages
                for group in page["Reservations"]
                for instance in group["Instances"]
            ]
        return True if set(states) <= {"terminated"} else None

    wait_for(ended, _EVERY_S, _ENDING_S, "machines did not end")
