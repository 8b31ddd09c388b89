"""`istbench doctor`: the abilities of this machine."""

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istbench.base.errors import UserError
from istbench.base.files import is_directory, is_there
from istbench.base.machine import cores, memory_bytes
from istbench.cli import EXIT_FAILED
from istbench.cli.doctor_torch import TORCH, torch_clash
from istbench.cli.options import PATH, option, places
from istbench.launch.backends.hosts import REACHING, Hosts

if TYPE_CHECKING:
    import torch

    from istbench.fabric import Fabric


_MUCH_FASTER = 1.3
"""The rate of oneDNN over that of torch. On an Intel Xeon it was .96 to 1.13 in eight measurements."""


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis: `state` is ok, missing (something optional) or broken."""

    state: str
    what: str
    detail: str


@click.command("doctor")
@places(*REACHING)
@option("--profile", "Measure a cluster profile of --hosts.", PATH, metavar="FILE.toml")
def command(profile: Path | None, **given: Any) -> int:
    """List what works on this machine, and how to repair the rest. Exits with 1 if something is broken."""
    chosen = Hosts.chosen(given)
    if chosen is not None:
        from istbench.cli.doctor_hosts import examine, say

        chosen = chosen.installed(say)
        return examine(chosen.hosts, chosen.pythons, chosen.ssh_config, profile)
    if profile is not None:
        raise UserError("--profile describes hosts: give --hosts a,b as well")
    broken = False
    for check in (
        _python,
        _packages,
        _processor,
        _speed,
        _gpu,
        _processes,
        _carrying,
        _lab,
        _speech,
        _cache,
        _space,
    ):
        for finding in check():
            broken = broken or finding.state == "broken"
            click.echo(f"{finding.state:<7}  {finding.what:<16}  {finding.detail}")
    return EXIT_FAILED if broken else 0


def _python() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} (needs 3.11 or later)")


def _packages() -> Iterator[Finding]:
    """Installed versions against the ranges that istbench was installed with."""
    from packaging.requirements import Requirement

    listed = [Requirement(text) for text in requires("istbench") or []]
    needed = {one.name: one for one in listed if one.marker is None or one.marker.evaluate({"extra": ""})}
    clash = torch_clash({name: needed[name] for name in TORCH})
    if clash:
        yield Finding("broken", TORCH[0], clash)
    for name, one in needed.items():
        if clash and name in TORCH:
            continue
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding("broken", name, f"not installed: pip install '{one}'")
            continue
        fits = one.specifier.contains(found, prereleases=True)
        way_out = "" if fits else f", but istbench needs {one.specifier}: pip install '{one}'"
        yield Finding("ok" if fits else "broken", name, f"{found}{way_out}")


def _processor() -> Iterator[Finding]:
    yield Finding("ok", "processor", f"{cores()} cores, {memory_bytes() / 2**30:.0f} GiB of memory")


def _speed() -> Iterator[Finding]:
    """The speed of computing on this machine, for `gflops` and `..._gb_per_s` of a cluster profile."""
    import torch

    from istbench.node.machine_speed import product_speeds, speed_here

    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        speed = speed_here(torch.device(device))
        gather = speed.gather_gb_per_s
        rows = f", {gather:.3g} GB/s of rows in random order" if gather else ""
        core = f", one core alone {speed.core_gb_per_s:.3g}" if speed.core_gb_per_s else ""
        threads = f" with {torch.get_num_threads()} threads" if device == "cpu" else ""
        yield Finding(
            "ok",
            "computing",
            f"{device}{threads}: {speed.gflops:.3g} GFLOP/s, "
            f"{speed.memory_gb_per_s:.3g} GB/s of memory{core}{rows}",
        )
    speeds = product_speeds()
    if speeds is not None:
        by = "MKL" if torch.backends.mkl.is_available() else "its BLAS"
        yield from products_findings(*speeds, by)


def products_findings(own: float, onednn: float, by: str) -> Iterator[Finding]:
    """A finding if oneDNN is much faster than `by`, with which torch computes products; both in GFLOP/s."""
    if onednn > _MUCH_FASTER * own:
        yield Finding(
            "ok",
            "matrix products",
            f"torch computes those of float32 by {by} at {own:.3g} GFLOP/s, oneDNN reaches {onednn:.3g}; a torch "
            "that is built with OpenBLAS may be faster, and --amp bf16 computes by oneDNN",
        )


def _gpu() -> Iterator[Finding]:
    import torch

    from istbench.node.gpu_copies import here

    if not torch.cuda.is_available():
        yield Finding("missing", "gpu", "none that torch can use; everything runs on the CPU")
        return
    for number in range(torch.cuda.device_count()):
        yield Finding("ok", "gpu", torch.cuda.get_device_name(number))
    if torch.cuda.device_count() > 1:
        yield copies_finding(here())


def copies_finding(devices: Sequence["torch.device"]) -> Finding:
    """Whether copies between all pairs of `devices` arrive whole."""
    from istbench.node.gpu_copies import broken_copies

    broken = broken_copies(devices)
    whole = f"from each of {len(devices)} to each other, a tensor arrives whole"
    return Finding("broken" if broken else "ok", "gpu copies", broken or whole)


def _processes() -> Iterator[Finding]:
    """Two real workers that average a number over gloo."""
    from istbench.base.errors import RunFailed, UserError
    from istbench.launch.processes.on_nodes import on_nodes

    try:
        answers = on_nodes(average_of_ranks, 2)
    except (RunFailed, UserError) as failure:
        yield Finding("broken", "worker processes", str(failure).splitlines()[0])
        return
    state = "ok" if answers == [0.5, 0.5] else "broken"
    yield Finding(state, "worker processes", f"two workers averaged their ranks over gloo: {answers[0]}")


def average_of_ranks(fabric: "Fabric") -> float:
    """Runs on every node: the mean of all ranks."""
    import torch

    mine = torch.tensor(float(fabric.rank))
    fabric.all_reduce_mean(mine)
    return float(mine)


def _carrying() -> Iterator[Finding]:
    """The cost of messages on this machine, for `overhead_s` and `cpu_s_...` of a cluster profile."""
    from istbench.base.errors import RunFailed, UserError
    from istbench.launch.processes.message_costs import measure_message_costs

    try:
        ways = measure_message_costs()
    except (RunFailed, UserError):
        return  # the finding before this one reports it
    yield Finding("ok", "all-reduce", f"on loopback, {ways.all_reduce}")
    yield Finding("ok", "transfers", f"on loopback, {ways.transfer}")
    yield Finding("ok", "transport", f"on loopback, {ways.transport}")


def _lab() -> Iterator[Finding]:
    from istbench.launch.lab import control_groups, network

    try:
        network.check()
        control_groups.check()
    except UserError as error:
        yield Finding("missing", "lab", str(error))
        return
    latency = "by netem" if network.has_netem() else "by a process that holds frames: this kernel has no netem"
    yield Finding("ok", "lab", f"namespaces and shaped links; latency {latency}")


def _speech() -> Iterator[Finding]:
    if importlib.util.find_spec("espeakng_loader") is None:
        yield Finding("missing", "espeak ng", "no synthetic speech: pip install espeakng-loader, or use --data DIR")
    else:
        yield Finding("ok", "espeak ng", version("espeakng_loader"))


def _cache() -> Iterator[Finding]:
    from istbench.base.cache import cache_directory

    cache = cache_directory()
    yield _writable("cache", cache, "set ISTBENCH_CACHE to a directory that is")


def _space() -> Iterator[Finding]:
    here = Path.cwd()
    finding = _writable("results", here / "results", "choose another with --out")
    free = shutil.disk_usage(here).free / 2**30
    yield Finding(finding.state, finding.what, f"{finding.detail}, {free:.0f} GiB free")


def _writable(what: str, path: Path, way_out: str) -> Finding:
    existing = next(folder for folder in (path, *path.parents) if is_there(folder))
    if is_directory(existing) and os.access(existing, os.W_OK):
        return Finding("ok", what, str(path))
    return Finding("broken", what, f"{path} cannot be written; {way_out}")
