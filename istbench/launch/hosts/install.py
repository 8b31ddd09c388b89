"""istbench installed on hosts that lack it: a wheel of this checkout, in a virtual environment of its own."""

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import istbench
from istbench.base.errors import UserError, printable
from istbench.base.scratch import scratch_folder
from istbench.launch.hosts.connection import Connection, ask_each, connected, each, pythons
from istbench.launch.hosts.group import Say, Unfit, ask_all, own_versions
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.remote_programs import source_key

_INSTALLS_S = 3600.0


def install(
    hosts: Sequence[Host], python: str | None, config: Path | None, say: Say, *, leave_out: bool = False
) -> None:
    """Install this istbench on those of `hosts` whose istbench has other code, or which have none.

    The Python of the host makes the environment, `python` or one of this version; the configuration of pip there
    decides where packages come from. `pythons` then finds the environment first.

    leave_out: whether to leave out hosts that cannot be reached, as others may replace them.

    Raises:
        Unfit: with a line for each host that cannot install it. UserError: if no wheel can be built here.
    """
    names = [python] if python else pythons(None, installing=True)
    with connected(hosts, names, config) as (connections, _):
        greeted, problems = each(connections, Connection.greet)
        if problems and not leave_out:
            raise Unfit(problems)
        answering = [host for host in connections if host.name in greeted]
        keys, _ = ask_each(answering, "source_key", lambda _: {})  # refused without istbench
        lacking = [host for host in answering if keys.get(host.name) != source_key()]
        if not lacking:
            return
        say(f"installing istbench on {', '.join(host.name for host in lacking)}: some minutes the first time")
        started = time.monotonic()
        with scratch_folder() as scratch:
            wheel = build_wheel(scratch)
            named = {"content": wheel.read_bytes(), "name": wheel.name, "key": source_key()}
        torch = own_versions()["torch"].partition("+")[0]
        also = [f"torch=={torch}"] if torch != "none" else []
        extras = ["speech"] if importlib.util.find_spec("espeakng_loader") else []
        question = {**named, "extras": extras, "also": also, "python": list(sys.version_info[:2])}
        ask_all(lacking, "install", str, lambda _: question, _INSTALLS_S)
        say(f"installed istbench on {len(lacking)} hosts in {time.monotonic() - started:.1f} s")


def build_wheel(scratch: Path) -> Path:
    """A wheel of this checkout, built in the empty directory `scratch`.

    Raises:
        UserError: if the wheel cannot be built, or istbench runs from no checkout.
    """
    checkout = Path(istbench.__file__).resolve().parents[1]
    if not (checkout / "setup.cfg").is_file():
        raise UserError("--install needs a checkout of istbench here; install istbench on the hosts yourself")
    source = scratch / "source"  # a copy: files of an older build in the checkout would get into the wheel
    for name in ("istbench", "configs"):
        shutil.copytree(checkout / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(checkout / name, source / name)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(scratch), str(source)]
    built = subprocess.run([sys.executable, "-P", *words], capture_output=True, text=True)
    wheels = sorted(scratch.glob("istbench-*.whl"))
    if built.returncode or not wheels:
        printed = built.stderr.strip().splitlines() or ["pip printed nothing"]
        raise UserError(f"cannot build a wheel of {checkout}: {printable(printed[-1])}; install pip and setuptools")
    return wheels[-1]
