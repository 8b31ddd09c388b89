"""Running an istbench command on a cluster: started on every machine, followed, ended, and come back to."""

import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from istbench.aws.commands import (
    UNIT,
    Errand,
    keep_lines,
    node_words,
    prepare_lines,
    secret_key,
    start_lines,
    stop_lines,
)
from istbench.aws.machines import UP, Machine, find_machines, tell, wait_online
from istbench.aws.session import Aws, calls
from istbench.aws.spec import ClusterSpec
from istbench.aws.stack import Say
from istbench.aws.transfer import RESULTS, Pushed, versions
from istbench.aws.waiting import pause
from istbench.door import decode_json
from istbench.errors import RunFailed, UserError, printable
from istbench.hosts.wheel import package

_CURRENT = "runs/current.json"
_EVERY_S, _LOOK_EVERY = 5.0, 6
_INSTALL_S, _START_S, _STOP_S = 1800.0, 120.0, 180.0
# What is brought may be large; machines that waited for it in vain end themselves after that.
_BRING_S = 7200.0


class MachineLost(RunFailed):
    """A machine has ended before the run, which is over on all."""


class _Current(msgspec.Struct, frozen=True, kw_only=True):
    """The run that was started last."""

    run: Annotated[str, Meta(pattern=r"^[0-9TZ-]{1,40}$")]
    words: list[str]


class _Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended on one machine."""

    status: Annotated[int, Meta(ge=0, le=255)]


@dataclass(frozen=True, kw_only=True)
class StandingCluster:
    """A cluster that stands: where it is, its bucket, and its machines by rank."""

    aws: Aws
    name: str
    bucket: str
    machines: tuple[Machine, ...]

    @property
    def s3(self) -> Any:
        """The client of the bucket."""
        return self.aws.client("s3")


def start(
    cluster: StandingCluster, spec: ClusterSpec, errand: Errand, out: Path, linger_minutes: int, say: Say
) -> str:
    """Start `errand` on every machine, or come back to it where it is running already; returns its run's name.

    `out` is the results directory of this machine: what is in it goes along, so that nothing is run twice.

    Raises:
        UserError: where something else is running.
        RunFailed: where a machine cannot be reached or set up, naming it.
    """
    wait_online(cluster.aws, cluster.machines)
    running = _running(cluster, _minutes(_INSTALL_S) + linger_minutes)
    if running is not None:
        if running.words != list(errand.words):
            raise UserError(
                f"cluster {cluster.name} is at work on `{' '.join(running.words)}`: the same command follows it, "
                "and Ctrl-C then ends it"
            )
        say("it is running already, and is followed")
        return running.run
    say(f"installing istbench on {len(cluster.machines)} machines, for some minutes the first time")
    _install(cluster, spec)
    keep = keep_lines(_minutes(_BRING_S) + linger_minutes)
    tell(cluster.aws, dict.fromkeys(cluster.machines, keep), "wait for what it is to do", _START_S)
    run = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    _bring(cluster, run, errand, out, say)
    addresses = [machine.address for machine in cluster.machines]
    lines = {
        machine: start_lines(
            node_words(errand.words, machine.rank, addresses),
            rank=machine.rank,
            region=cluster.aws.region,
            bucket=cluster.bucket,
            run=run,
            linger_minutes=linger_minutes,
        )
        for machine in cluster.machines
    }
    with calls("to note the run"):
        secret = secrets.token_hex(32).encode()
        cluster.s3.put_object(Bucket=cluster.bucket, Key=secret_key(run), Body=secret)
        body = msgspec.json.encode(_Current(run=run, words=list(errand.words)))
        cluster.s3.put_object(Bucket=cluster.bucket, Key=_CURRENT, Body=body)
    try:
        tell(cluster.aws, lines, "start the run", _START_S)
    except (RunFailed, KeyboardInterrupt):  # those that started would wait for the others
        tell(cluster.aws, dict.fromkeys(_alive(cluster), stop_lines()), "end the run", _STOP_S)
        raise
    return run


def follow(cluster: StandingCluster, run: str) -> int:
    """Print what the first machine prints until the run has ended on all; returns its exit status.

    Raises:
        MachineLost: where a machine is gone, naming it; the run is ended on the others.
        RunFailed: where AWS refuses, or cannot be reached; the run goes on.
    """
    printed = _Printed(cluster, run)
    rounds = 0
    while True:
        printed.print_new()
        ended = _ended(cluster, run)
        if len(ended) == len(cluster.machines):
            printed.print_new()
            printed.print_failures(ended)
            return ended[0] or max(ended.values())
        if rounds % _LOOK_EVERY == _LOOK_EVERY - 1:
            _look_after(cluster, run)
        rounds += 1
        pause(_EVERY_S)


def stop(cluster: StandingCluster, run: str, say: Say) -> None:
    """End the run on every machine, as Ctrl-C would, and wait until what it leaves is in the bucket."""
    say("ending the run on all machines")
    alive = _alive(cluster)
    tell(cluster.aws, dict.fromkeys(alive, stop_lines()), "end the run", _STOP_S)
    missing = [machine for machine in alive if machine.rank not in _ended(cluster, run)]
    if missing:
        say(f"{', '.join(map(str, missing))}: nothing was heard of its end")


def _install(cluster: StandingCluster, spec: ClusterSpec) -> None:
    with tempfile.TemporaryDirectory(prefix="istbench-wheel-") as scratch:
        made = package(None if spec.requirement is None else str(spec.requirement), Path(scratch))
        if made.wheel is not None and made.key is not None:
            with calls("to take istbench to the machines"):
                if not versions(cluster.s3, cluster.bucket, made.key):
                    cluster.s3.upload_file(str(made.wheel), cluster.bucket, made.key)
        lines = prepare_lines(
            spec, region=cluster.aws.region, bucket=cluster.bucket, wheel=made.key, requirement=made.requirement
        )
        tell(cluster.aws, dict.fromkeys(cluster.machines, lines), "install istbench", _INSTALL_S)


def _bring(cluster: StandingCluster, run: str, errand: Errand, out: Path, say: Say) -> None:
    with calls("to take files to the machines"):
        for name, path in errand.files.items():
            cluster.s3.upload_file(str(path), cluster.bucket, f"runs/{run}/files/{name}")
        if errand.data is not None:
            say(f"the data in {errand.data} goes along")
            there = f"data/{errand.data.resolve().name}/"
            new = not versions(cluster.s3, cluster.bucket, there)
            Pushed(cluster.s3, cluster.bucket, there, errand.data).push(everything=new)
        if not versions(cluster.s3, cluster.bucket, RESULTS):
            taken = Pushed(cluster.s3, cluster.bucket, RESULTS, out).push(everything=True)
            if taken:
                say(f"{taken} files of earlier results in {out} go along")


def _running(cluster: StandingCluster, minutes: int) -> _Current | None:
    """The run that at least one machine is at work on; machines that are at none wait `minutes` for one."""
    ask = [*keep_lines(minutes), f"systemctl is-active {UNIT} || true"]
    states = tell(cluster.aws, dict.fromkeys(cluster.machines, ask), "say whether it is at work", _START_S)
    if all(state.strip() not in ("active", "deactivating") for state in states.values()):
        return None
    with calls("what is running"):
        noted = _read(cluster, _CURRENT)
    return decode_json(noted, _Current, _CURRENT, "run `istbench aws down`") if noted else None


def _minutes(seconds: float) -> int:
    return round(seconds / 60)


def _ended(cluster: StandingCluster, run: str) -> dict[int, int]:
    """The exit status of each machine on which the run has ended, by rank."""
    with calls("how the run goes"):
        keys = [key for key in versions(cluster.s3, cluster.bucket, f"runs/{run}/") if key.endswith(".ended")]
        found = {key: _read(cluster, key) for key in keys}
    statuses = {}
    for key, content in found.items():
        rank = key.rpartition("/")[2].removesuffix(".ended")
        if rank.isdecimal():
            statuses[int(rank)] = decode_json(content, _Ended, key, "run it again").status
    return statuses


def _look_after(cluster: StandingCluster, run: str) -> None:
    alive = {machine.identity for machine in _alive(cluster)}
    lost = [machine for machine in cluster.machines if machine.identity not in alive]
    ended = _ended(cluster, run)
    silent = [machine for machine in lost if machine.rank not in ended]
    if not silent:
        return
    left = [machine for machine in cluster.machines if machine.identity in alive and machine.rank not in ended]
    if left:
        tell(cluster.aws, dict.fromkeys(left, stop_lines()), "end the run", _STOP_S)
    raise MachineLost(
        f"{', '.join(map(str, silent))}: ended before the run, as when its hours are over or AWS takes it back; "
        "`istbench aws fetch`, `down` and `up`, and the same command goes on"
    )


def _alive(cluster: StandingCluster) -> Sequence[Machine]:
    return find_machines(cluster.aws, cluster.name, UP).get(cluster.name, [])


def _read(cluster: StandingCluster, key: str) -> bytes:
    content: bytes = cluster.s3.get_object(Bucket=cluster.bucket, Key=key)["Body"].read()
    return content


@dataclass
class _Printed:
    """What was printed here of what the first machine prints."""

    cluster: StandingCluster
    run: str
    done: dict[str, int] = field(default_factory=lambda: {"0.err": 0, "0.out": 0})

    def print_new(self) -> None:
        """Print what is new: stdout on stdout, stderr on stderr."""
        with calls("how the run goes"):
            there = versions(self.cluster.s3, self.cluster.bucket, f"runs/{self.run}/0.")
        for name, stream in (("0.err", sys.stderr), ("0.out", sys.stdout)):
            key = f"runs/{self.run}/{name}"
            if key not in there:
                continue
            with calls("how the run goes"):
                content = _read(self.cluster, key)
            stream.write(content[self.done[name] :].decode(errors="replace"))
            stream.flush()
            self.done[name] = len(content)

    def print_failures(self, ended: Mapping[int, int]) -> None:
        """Print the last line of every other machine where the run failed."""
        for machine in self.cluster.machines[1:]:
            if ended[machine.rank]:
                with calls("why a run failed"):
                    there = versions(self.cluster.s3, self.cluster.bucket, f"runs/{self.run}/{machine.rank}.err")
                    said = [_read(self.cluster, key).decode(errors="replace").strip() for key in there]
                last = said[0].splitlines()[-1] if said and said[0] else f"status {ended[machine.rank]}"
                print(f"{machine}: {printable(last)}", file=sys.stderr)
