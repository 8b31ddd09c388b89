"""What the machines are told to do, as lines of shell and as command lines."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from istbench.aws.boot import BOOTED, HOME
from istbench.aws.spec import ClusterSpec
from istbench.errors import UserError, shown, unknown_name

PORT = 29500
RESULTS = f"{HOME}/results"
FILES = f"{HOME}/files"
DATA = f"{HOME}/data"
_BIN = f"{HOME}/venv/bin"
_BOOT_LOG = "/var/log/cloud-init-output.log"
UNIT, _LINGER = "istbench-run", "istbench-linger"
# Those that train go on all machines as one; the others on every machine for itself.
_TRAINING, _EACH = ("run",), ("data", "doctor")
_OURS = {"--out": "results come back by `istbench aws fetch`", "--hosts": "the cluster's machines are used"}


@dataclass(frozen=True, kw_only=True)
class Errand:
    """An istbench command for a cluster.

    Attributes:
        words: as the machines see them. files: those of this machine it needs, by their name there.
        data: the directory of this machine that `--data` names, if it is one.
        saved: where `--save` leaves weights, below the results directory, so that they come back with it.
    """

    words: tuple[str, ...]
    files: Mapping[str, Path]
    data: Path | None = None
    saved: PurePosixPath | None = None


def errand(words: Sequence[str]) -> Errand:
    """The errand of an istbench command line; profiles, plug-ins and data of this machine go along, and weights
    that it saves come back with the results.

    Raises:
        UserError: for a command that makes no sense there, an option that is the cluster's to set, a file that is
            not here.
    """
    if not words:
        raise UserError("nothing to run; write it after --, such as: istbench aws run -- run --method ist ...")
    if words[0] == "compare":
        raise UserError("compare does not run on several machines; use a `run` for each of its cells")
    if words[0] not in (*_TRAINING, *_EACH):
        raise unknown_name("command for a cluster", words[0], (*_TRAINING, *_EACH))
    files: dict[str, Path] = {}
    there = []
    data = saved = None
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in _OURS:
            raise UserError(f"leave out {flag}: {_OURS[flag]}")
        own_flag = bool(equals) and flag.startswith("--")
        before = flag if own_flag else words[max(number - 1, 0)]
        name = value if own_flag else word
        if before == "--save":
            saved = _saved(name)
            name = f"{RESULTS}/{saved}"
        elif before == "--data" and Path(name).is_dir():
            data = Path(name)
            name = f"{DATA}/{data.resolve().name}"
        elif Path(name).suffix in (".toml", ".py"):
            name = f"{FILES}/{_take_along(Path(name), files)}"
        there.append(f"{flag}={name}" if own_flag else name)
    return Errand(words=tuple(there), files=files, data=data, saved=saved)


def _saved(given: str) -> PurePosixPath:
    """The place below the results directory for what is to be saved in directory `given`."""
    path = Path(given)
    return PurePosixPath("saved", *(part for part in path.parts if part not in (path.anchor, "..")))


def _take_along(path: Path, files: dict[str, Path]) -> str:
    if not path.is_file():
        raise UserError(f"no file {shown(str(path))} here, to take to the machines; check the name")
    if files.setdefault(path.name, path) != path:
        raise UserError(f"{files[path.name]} and {path} have one name; rename one of them")
    return path.name


def node_words(words: Sequence[str], rank: int, addresses: Sequence[str]) -> list[str]:
    """The command line that the machine of `rank` runs; `addresses` are those of all, by rank."""
    if words[0] not in _TRAINING:
        return [f"{_BIN}/istbench", *words]
    return [
        f"{_BIN}/torchrun",
        *("--nnodes", str(len(addresses))),
        *("--node-rank", str(rank)),
        *("--nproc-per-node", "1"),
        *("--rdzv-endpoint", f"{addresses[0]}:{PORT}"),
        *("-m", "istbench", *words),
        *("--out", RESULTS),
    ]


def secret_key(run: str) -> str:
    """Where the secret that the ranks of `run` share lies in the cluster's own bucket."""
    return f"runs/{run}/secret"


def prepare_lines(spec: ClusterSpec, *, region: str, bucket: str, wheel: str | None, requirement: str) -> list[str]:
    """Shell that installs istbench on a machine, once; it can be run again.

    Args:
        wheel: key of the wheel in the bucket; None where pip is to get `requirement` by itself.
        requirement: as pip takes it, or the digest of the wheel, by which an older one is known.
    """
    mark = f"{HOME}/installed"
    arguments = shlex.join(spec.pip_arguments)
    pip = f"{_BIN}/pip install --quiet --disable-pip-version-check"
    lines = [
        "set -eu",
        "cloud-init status --wait > /dev/null || true",
        f'if ! test -e {BOOTED}; then echo "setup failed at boot: $(tail -n 1 {_BOOT_LOG})" >&2; exit 1; fi',
        f'if test "$(cat {mark} 2> /dev/null)" = {shlex.quote(requirement)}; then exit 0; fi',
        f"test -x {_BIN}/pip || python3 -m venv {HOME}/venv",
    ]
    if wheel is None:
        lines.append(f"{pip} {arguments} {shlex.quote(requirement)} boto3")
    else:
        local = f"{HOME}/{wheel.rpartition('/')[2]}"
        fetch = (
            f"import boto3; boto3.client('s3', region_name={region!r})"
            f".download_file({bucket!r}, {wheel!r}, {local!r})"
        )
        lines += [
            f"{pip} boto3",
            f"{_BIN}/python -c {shlex.quote(fetch)}",
            f"{pip} {arguments} {shlex.quote(f'istbench[speech,aws] @ file://{local}')}",
            f"{pip} --force-reinstall --no-deps {local}",
        ]
    compute = "import torch; torch.ones(1, device='cuda').add_(1).item()"
    lines += [
        "if command -v nvidia-smi > /dev/null && nvidia-smi -L | grep -q GPU; then "
        f'{_BIN}/python -c "{compute}" || {{ echo "torch cannot compute on this GPU: name an index of builds that '
        'can in pip_arguments of the spec, see docs/aws.md" >&2; exit 1; }; fi',
        f"printf %s {shlex.quote(requirement)} > {mark}",
    ]
    return lines


def start_lines(
    words: Sequence[str], *, rank: int, region: str, bucket: str, run: str, linger_minutes: int
) -> list[str]:
    """Shell that starts `words` on the machine of `rank`, detached; after it, the machine ends itself.

    It runs as a unit of systemd's: it outlives the command that starts it, and whatever ends it arms the shutdown.
    """
    linger = f"/usr/bin/systemd-run --unit={_LINGER} --on-active={linger_minutes}m /sbin/shutdown -P now"
    keeper = [
        f"{_BIN}/python", "-m", "istbench.aws.keeper",
        *("--bucket", bucket), *("--region", region), *("--run", run), *("--rank", str(rank)), "--", *words,
    ]  # fmt: skip
    unit = [
        "systemd-run", f"--unit={UNIT}", "--collect",
        "--property=KillMode=mixed", "--property=KillSignal=SIGINT", "--property=TimeoutStopSec=120",
        f"--property=ExecStopPost={linger}",
        f"--working-directory={HOME}", f"--setenv=HOME={HOME}", f"--setenv=PATH={_BIN}:/usr/sbin:/usr/bin",
        *keeper,
    ]  # fmt: skip
    return [
        "set -eu",
        f"if systemctl is-active --quiet {UNIT}; then echo 'another run is under way here' >&2; exit 1; fi",
        f"systemctl stop {_LINGER}.timer 2> /dev/null || true",
        f"systemctl reset-failed {_LINGER}.service {UNIT}.service 2> /dev/null || true",
        shlex.join(unit),
    ]


def keep_lines(minutes: int) -> list[str]:
    """Shell by which a machine that waits for its end waits `minutes` from now; another is left as it is."""
    again = f"systemd-run --quiet --unit={_LINGER} --on-active={minutes}m /sbin/shutdown -P now > /dev/null"
    return [
        f"if systemctl is-active --quiet {_LINGER}.timer; then systemctl stop {_LINGER}.timer; "
        f"systemctl reset-failed {_LINGER}.service 2> /dev/null || true; {again}; fi"
    ]


def stop_lines() -> list[str]:
    """Shell that ends what runs on a machine, as Ctrl-C would."""
    return [f"systemctl stop {UNIT} 2> /dev/null || true"]
