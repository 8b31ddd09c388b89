"""A cluster's machines: which are there, and telling them what to do, through Systems Manager."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from istbench.aws.session import Aws, calls, error_code
from istbench.aws.template import TAG
from istbench.aws.waiting import wait_for
from istbench.errors import RunFailed, printable

_EVERY_S, _ONLINE_S, _LEAST_SSM_S = 5.0, 900.0, 60
UP = ("pending", "running")
"""States of a machine that can be told something, or soon can."""
_ALIVE = (*UP, "stopping", "stopped", "shutting-down")
_UNDER_WAY = ("Pending", "InProgress", "Delayed", "Cancelling")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of a cluster. `address` is the one inside the cluster's network."""

    identity: str
    rank: int
    state: str
    address: str
    kind: str

    def __str__(self) -> str:
        return f"machine {self.rank} ({self.identity})"


def find_machines(aws: Aws, cluster: str | None = None, states: Sequence[str] = _ALIVE) -> dict[str, list[Machine]]:
    """The machines in one of `states`, of one cluster or of all, by cluster and then by rank.

    Without `states`, those that are not ended.
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
    )


def wait_online(aws: Aws, machines: Sequence[Machine]) -> None:
    """Return when Systems Manager reaches every machine.

    Raises:
        RunFailed: naming those that it does not reach.
    """
    missing = {machine.identity: machine for machine in machines}

    def online() -> bool | None:
        with calls(f"which machines are online in {aws.region}"):
            pages = (
                aws.client("ssm")
                .get_paginator("describe_instance_information")
                .paginate(Filters=[{"Key": "InstanceIds", "Values": list(missing)}])
            )
            for page in pages:
                for told in page["InstanceInformationList"]:
                    if told["PingStatus"] == "Online":
                        missing.pop(told["InstanceId"], None)
        return None if missing else True

    try:
        wait_for(online, _EVERY_S, _ONLINE_S, "not all machines came online")
    except RunFailed as error:
        raise RunFailed(f"{', '.join(map(str, missing.values()))}: {error}") from None


def tell(aws: Aws, lines: Mapping[Machine, Sequence[str]], what: str, limit_s: float) -> dict[Machine, str]:
    """Run each machine's lines of shell on it, all at once; returns what each printed.

    Raises:
        RunFailed: naming the first machine where they failed, and its last line.
    """
    ssm = aws.client("ssm")
    sent: dict[Machine, str] = {}
    with calls(f"to {what}"):
        for machine, commands in lines.items():
            answer = ssm.send_command(
                InstanceIds=[machine.identity],
                DocumentName="AWS-RunShellScript",
                Comment=f"istbench: {what}"[:100],
                TimeoutSeconds=_LEAST_SSM_S,
                Parameters={"commands": list(commands), "executionTimeout": [str(round(limit_s))]},
            )
            sent[machine] = answer["Command"]["CommandId"]
    return {machine: _answer(aws, machine, command, what, limit_s) for machine, command in sent.items()}


def _answer(aws: Aws, machine: Machine, command: str, what: str, limit_s: float) -> str:
    from botocore.exceptions import ClientError

    def ended() -> dict[str, Any] | None:
        with calls(f"what became of `{what}` on {machine}"):
            try:
                told: dict[str, Any] = aws.client("ssm").get_command_invocation(
                    CommandId=command, InstanceId=machine.identity
                )
            except ClientError as error:
                if error_code(error) == "InvocationDoesNotExist":  # not handed out yet
                    return None
                raise
        return None if told["Status"] in _UNDER_WAY else told

    told = wait_for(ended, _EVERY_S, limit_s + _LEAST_SSM_S, f"{machine} did not {what}")
    if told["Status"] != "Success":
        said = (told.get("StandardErrorContent") or told.get("StandardOutputContent") or "").strip().splitlines()
        # The last line is the agent's own, where the shell failed.
        lines = [line for line in said if line.strip() and not line.startswith("failed to run commands")]
        raise RunFailed(f"{machine}: {what} failed: {printable(lines[-1]) if lines else told['Status']}")
    return str(told.get("StandardOutputContent", ""))


def end_machines(aws: Aws, machines: Sequence[Machine]) -> None:
    """Terminate `machines`, and return when they are."""
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

    wait_for(ended, _EVERY_S, 900.0, "machines did not end")
