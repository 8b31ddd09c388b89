"""A cluster's life: up, its results fetched, down."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from istbench.aws.errands import StandingCluster
from istbench.aws.local_files import Remembered, forget, recall, remember, remember_fetched
from istbench.aws.machines import UP, Machine, end_machines, find_machines, wait_online
from istbench.aws.session import Aws, calls
from istbench.aws.spec import ClusterSpec, Region
from istbench.aws.stack import (
    Say,
    bucket_of,
    create_stack,
    delete_stack,
    find_stack,
    wait_until_made,
)
from istbench.aws.standing import standing
from istbench.aws.survey import left_over
from istbench.aws.transfer import RESULTS, empty, pull, unfetched, versions
from istbench.errors import RunFailed, UserError


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A cluster about to be made. `per_hour` is what it costs, USD."""

    spec: ClusterSpec
    max_hours: float
    per_hour: float


def up(aws: Aws, plan: Plan, say: Say) -> None:
    """Make the cluster, or go on making it; returns when all machines are reached.

    Raises:
        UserError: where another of that name stands; see `standing`.
        RunFailed: where AWS cannot make it, or there are remains of an earlier one in the way.
        KeyboardInterrupt: after a line that says what is being made, and how to end it.
    """
    name = plan.spec.cluster
    there = standing(aws, plan.spec)
    paid = there.made if there else plan
    try:
        identity = there.stack.identity if there else _begin(aws, plan)
        wait_until_made(aws, name, identity, say)
        machines = _all_machines(aws, name, plan.spec.count)
        say(f"{len(machines)} machines boot")
        wait_online(aws, machines)
    except KeyboardInterrupt:
        say(
            f"cluster {name} is there or being made in {aws.region}, at ${paid.per_hour:.2f} an hour for "
            f"{paid.max_hours:g} h at most; `istbench aws down --name {name}` ends it, the same `up` goes on"
        )
        raise


def _begin(aws: Aws, plan: Plan) -> str:
    began = datetime.now(UTC)
    ends = began + timedelta(hours=plan.max_hours)
    # Before AWS is asked: whatever happens then, it is known where to look.
    remember(plan.spec.cluster, _remembered(plan, aws.region, began, ends))
    return create_stack(aws, plan.spec, plan.max_hours, ends)


def stand(aws: Aws, name: str) -> StandingCluster:
    """A cluster that stands, with its machines.

    Raises:
        UserError: where there is none.
        RunFailed: where it is not complete, or one of its machines has ended: what runs on the others would be
            another measurement.
    """
    stack = find_stack(aws, name)
    if stack is None:
        raise UserError(f"no cluster {name} in {aws.region}; `istbench aws up` makes one, `aws status` lists them")
    if not stack.complete:
        raise RunFailed(f"cluster {name} is {stack.status}; `istbench aws up` goes on, `istbench aws down` ends it")
    bucket = bucket_of(aws, stack)
    if bucket is None:
        raise RunFailed(f"cluster {name} has no bucket; `istbench aws down --name {name}`, and up again")
    return StandingCluster(aws=aws, name=name, bucket=bucket, machines=_all_machines(aws, name, stack.count))


def _all_machines(aws: Aws, name: str, count: int) -> tuple[Machine, ...]:
    """The machines of a cluster that was made with `count`, by rank.

    Raises:
        RunFailed: where one has ended.
    """
    machines = tuple(find_machines(aws, name, UP).get(name, []))
    if not machines or [machine.rank for machine in machines] != list(range(count)):
        raise RunFailed(
            f"cluster {name} has {len(machines)} of its {count} machines left: its hours are over, or AWS took "
            f"them back; `istbench aws fetch`, `istbench aws down --name {name}`, and up again"
        )
    return machines


def fetch(aws: Aws, name: str, out: Path, say: Say) -> int:
    """Bring the results of cluster `name` into results directory `out`, only what is new; returns how many files.

    Raises:
        UserError: where there is no such cluster, or `out` cannot be written.
        RunFailed: where AWS refuses.
    """
    stack = find_stack(aws, name)
    bucket = bucket_of(aws, stack) if stack else None
    if bucket is None:
        raise UserError(f"no cluster {name} in {aws.region}, nor results of it; `istbench aws status` lists them")
    have = recall().fetched.get(name, {})
    with calls(f"for the results of cluster {name}"):
        found = pull(aws.client("s3"), bucket, RESULTS, out, have)
    remember_fetched(name, found)
    new = len(unfetched(found, have))
    say(f"{new} new or changed files, of {len(found)}, in {out}")
    return new


def down(aws: Aws, name: str, *, discard: bool, say: Say) -> bool:
    """End the machines of cluster `name` and delete all of it; returns whether there was anything.

    Twice does no harm.

    Raises:
        UserError: where results were not fetched, unless `discard`; nothing is deleted then.
        RunFailed: where something could not be deleted, naming it.
    """
    stack = find_stack(aws, name)
    machines = find_machines(aws, name).get(name, [])
    bucket = bucket_of(aws, stack) if stack else None
    if bucket and not discard:
        _refuse_unfetched(aws, name, bucket)
    if machines:
        say(f"ending {len(machines)} machines of cluster {name} in {aws.region}")
        end_machines(aws, machines)
    if bucket:
        if not discard:  # what they brought to the end
            _refuse_unfetched(aws, name, bucket)
        with calls(f"to empty bucket {bucket}"):
            empty(aws.client("s3"), bucket)
    if stack:
        say(f"deleting the stack of cluster {name}")
        delete_stack(aws, stack)
    forget(name)
    remains = left_over(aws, [], find_machines(aws, name)).get(name, [])
    if remains:
        say(f"AWS still lists {', '.join(remains)}; what was deleted goes from the list within minutes")
    return bool(stack or machines)


def _refuse_unfetched(aws: Aws, name: str, bucket: str) -> None:
    have = recall().fetched.get(name, {})
    with calls(f"for the results of cluster {name}"):
        missing = unfetched(versions(aws.client("s3"), bucket, RESULTS), have)
    if missing:
        raise UserError(
            f"{len(missing)} files of cluster {name} were not fetched, such as {missing[0].removeprefix(RESULTS)}: "
            f"`istbench aws fetch --name {name}` first, or --discard"
        )


def _remembered(plan: Plan, region: str, began: datetime, ends: datetime) -> Remembered:
    return Remembered(
        spec=plan.spec,
        region=Region(region),
        max_hours=plan.max_hours,
        began=began.isoformat(timespec="seconds"),
        ends=ends.isoformat(timespec="seconds"),
        per_hour=plan.per_hour,
    )
