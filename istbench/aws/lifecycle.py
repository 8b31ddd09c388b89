"""The life of a cluster: `up` creates it, and `down` ends it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from istbench.aws.access import allow_only, wait_booted
from istbench.aws.local_files import ClusterRecord, LocalFiles, forget, records
from istbench.aws.machines import ENDING, UP, Machine, end_machines, find_machines
from istbench.aws.session import Aws
from istbench.aws.spec import ClusterSpec, RegionName
from istbench.aws.stack import Say, Stack, create_stack, delete_stack, find_stack, wait_until_complete
from istbench.aws.survey import left_over
from istbench.aws.unfetched import unfetched
from istbench.base.errors import RunFailed, UserError

# Compared elsewhere, or without effect on the machines.
_NOT_COMPARED = {"name", "region", "max_hours", "price_per_hour"}


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """A cluster that `up` is to create.

    Attributes:
        per_hour: its cost, USD.
        network: the addresses that may open ssh connections; None sends them through Systems Manager.
    """

    spec: ClusterSpec
    max_hours: float
    per_hour: float
    network: str | None


@dataclass(frozen=True, kw_only=True)
class ExistingCluster:
    """A cluster that exists or is being created, and its record."""

    stack: Stack
    record: ClusterRecord


def existing_cluster(aws: Aws, spec: ClusterSpec, *, ssm: bool) -> ExistingCluster | None:
    """The cluster that `up` would create, if it exists; else None.

    Raises:
        UserError: if another cluster has its name: in another region, from another computer or from another spec.
        RunFailed: if parts of an earlier cluster are left.
    """
    name = spec.cluster
    record = records().get(name)
    if record is not None and record.region != aws.region:
        raise UserError(f"cluster {name} is in {record.region}: take it down first, or choose another --name")
    stack = find_stack(aws, name)
    if stack is None:
        return None
    if stack.status not in ("CREATE_IN_PROGRESS", "CREATE_COMPLETE"):
        raise RunFailed(
            f"cluster {name} in {aws.region} is {stack.status}: run `istbench aws down --name {name}` first"
        )
    if record is None or not record.ends.startswith(stack.ends):
        ends = f", and ends by {stack.ends} UTC" if stack.ends else ""
        raise UserError(
            f"a cluster {name} is in {aws.region}{ends}; this computer did not create it: "
            f"`istbench aws down --name {name} --region {aws.region}` first, or choose another --name"
        )
    differing = _differences(record.spec, spec)
    if record.ssm != ssm:
        differing.append(f"it was created {'with' if record.ssm else 'without'} --ssm")
    if differing:
        raise UserError(
            f"cluster {name} exists, and {'; '.join(differing)}: `istbench aws down --name {name}` first, "
            "or choose another --name"
        )
    return ExistingCluster(stack=stack, record=record)


def existing_lines(existing: ExistingCluster, region: str, max_hours: float) -> list[str]:
    """The size, end and cost of an existing cluster, as lines of text; `max_hours` is the present option."""
    record, spec = existing.record, existing.record.spec
    hours = (
        f"; --max-hours {max_hours:g} has no effect, only `down` and `up` change the end"
        if max_hours != record.max_hours
        else ""
    )
    return [
        f"cluster {spec.cluster} exists in {region}: {spec.count} x {spec.instance_type}, "
        f"${record.per_hour:.2f} an hour with disks and addresses (estimate)",
        f"the machines end themselves by {record.ends}, {record.max_hours:g} h after their creation{hours}",
        f"at most ${record.per_hour * record.max_hours:.2f} in all, without taxes and downloads",
    ]


def up(aws: Aws, request: ClusterRequest, say: Say) -> LocalFiles:
    """Create the cluster, or continue its creation; return when ssh reaches all machines.

    An existing cluster lets in the network of `request` in place of the one before.

    Raises:
        UserError: if another cluster has its name; see `existing_cluster`.
        RunFailed: if AWS cannot create it, a machine does not boot, or parts of an earlier cluster are left.
        KeyboardInterrupt: after a line with the cost, and the command that ends the cluster.
    """
    name, ssm = request.spec.cluster, request.network is None
    files = LocalFiles(name)
    existing = existing_cluster(aws, request.spec, ssm=ssm)
    paid = existing.record if existing else request
    try:
        identity = existing.stack.identity if existing else _create(aws, files, request)
        stack = wait_until_complete(aws, name, identity, say)
        if existing and request.network is not None and allow_only(aws, stack.group, request.network):
            say(f"the machines now let in {request.network}, and no other address")
        machines = _all_machines(aws, name, stack.count)
        files.write_ssh_config(machines, aws.region, ssm=ssm)
        say(f"{len(machines)} machines boot")
        wait_booted(files, machines)
        files.write_hosts(machines)
    except KeyboardInterrupt:
        say(
            f"AWS has created or creates cluster {name} in {aws.region}, for ${paid.per_hour:.2f} an hour and "
            f"{paid.max_hours:g} h at most; `istbench aws down --name {name}` ends it, the same `up` continues"
        )
        raise
    return files


def _create(aws: Aws, files: LocalFiles, request: ClusterRequest) -> str:
    began = datetime.now(UTC)
    ends = began + timedelta(hours=request.max_hours)
    record = ClusterRecord(
        spec=request.spec,
        region=RegionName(aws.region),
        max_hours=request.max_hours,
        began=began.isoformat(timespec="seconds"),
        ends=ends.isoformat(timespec="seconds"),
        per_hour=request.per_hour,
        ssm=request.network is None,
    )
    # Before the request to AWS: if that fails, `down` still finds the cluster.
    keys = files.create(record)
    return create_stack(aws, request.spec, request.max_hours, ends, keys, request.network)


def _all_machines(aws: Aws, name: str, count: int) -> tuple[Machine, ...]:
    """The `count` machines of a cluster, by rank.

    Raises:
        RunFailed: if one has ended.
    """
    machines = tuple(find_machines(aws, name, UP).get(name, []))
    if not machines or [machine.rank for machine in machines] != list(range(count)):
        raise RunFailed(
            f"cluster {name} has {len(machines)} of its {count} machines left: its hours are over, or AWS took "
            f"them back; `istbench aws down --name {name}`, then up again"
        )
    return machines


def down(aws: Aws, name: str, *, discard: bool, out: Path, say: Say) -> bool:
    """End the machines of cluster `name`, and delete its resources and local files; return whether it had any.

    A second call does no harm. `out` is a local directory with results.

    Raises:
        UserError: if a machine has a run that is not in `out`, or istbench cannot find out, unless `discard`. Then
            nothing is deleted.
        RunFailed: naming a resource that AWS could not delete.
    """
    stack = find_stack(aws, name)
    machines = find_machines(aws, name).get(name, [])
    record = records().get(name)
    ours = record is not None and record.region == aws.region
    if not discard:
        _refuse_unfetched(name, [machine for machine in machines if machine.state != ENDING], out, ours)
    if machines:
        say(f"ending {len(machines)} machines of cluster {name} in {aws.region}")
        end_machines(aws, machines)
    if stack:
        say(f"deleting the stack of cluster {name}")
        delete_stack(aws, stack)
    if ours:
        forget(name)
    remains = left_over(aws, [], find_machines(aws, name)).get(name, [])
    if remains:
        say(f"AWS still lists {', '.join(remains)}; deleted resources leave the list within minutes")
    return bool(stack or machines)


def _refuse_unfetched(name: str, machines: list[Machine], out: Path, ours: bool) -> None:
    files = LocalFiles(name)
    if not machines or (ours and not files.hosts.exists()):
        return  # `up` did not finish, so nothing has run there
    if not ours:
        raise UserError(
            f"this computer has no key of cluster {name}, so it cannot look for results there; take it down where "
            "you created it, or give --discard"
        )
    try:
        missing = unfetched(files, machines, out)
    except RunFailed as error:
        raise UserError(
            f"cannot look for results there: {error}; the same `istbench aws up` lets in your present address, "
            "--discard ends the cluster and its results"
        ) from None
    if missing:
        raise UserError(
            f"{len(missing)} runs of cluster {name} still train or are not in {out}, such as {missing[0]}: fetch "
            "them by the same `istbench run --hosts`, name their directory by --out, or give --discard"
        )


def _differences(made: ClusterSpec, asked: ClusterSpec) -> list[str]:
    """The differences between two specs, one text a field."""
    fields = [field for field in made.__struct_fields__ if field not in _NOT_COMPARED]
    pairs = [(field, getattr(made, field), getattr(asked, field)) for field in fields]
    return [f"its {field} {_difference(there, here)}" for field, there, here in pairs if there != here]


def _difference(made: Any, asked: Any) -> str:
    if isinstance(made, list):
        return "is another"
    return f"is {_text(made)}, not {_text(asked)}"


def _text(value: Any) -> str:
    return "not given" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
