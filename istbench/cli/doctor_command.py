"""`istbench doctor`: the abilities of this machine."""

import importlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from packaging.requirements import Requirement

from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.files import is_directory, is_there
from istbench.base.machine import cores, memory_bytes
from istbench.cli import EXIT_FAILED
from istbench.cli.options import PATH, option, places
from istbench.launch.backends.hosts import REACHING, Hosts

if TYPE_CHECKING:
    import torch

    from istbench.fabric import Fabric


TORCH = ("torch", "torchvision", "torchaudio")
"""Each version of the others is built for one of torch, so they change together."""
_LAST_TORCHAUDIO = 11  # torchaudio 2.11.0 serves torch 2.12 too; 2.11.1 does not load beside it
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
            click.echo(printable(f"{finding.state:<7}  {finding.what:<16}  {finding.detail}"))
    return EXIT_FAILED if broken else 0


def _python() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} (needs 3.11 or later)")


def _packages() -> Iterator[Finding]:
    """Installed versions against the ranges that istbench was installed with."""
    listed = [Requirement(text) for text in requires("istbench") or []]
    needed = {one.name: one for one in listed if one.marker is None or one.marker.evaluate({"extra": ""})}
    clash = torch_clash({name: needed[name] for name in TORCH})
    if clash:
        yield Finding("broken", TORCH[0], clash)
    for name, one in needed.items():
        if clash and name in TORCH:
            continue
        found = _version(name)
        if found is None:
            yield Finding("broken", name, f"not installed: pip install '{one}'")
            continue
        fits = one.specifier.contains(found, prereleases=True)
        way_out = "" if fits else f", but istbench needs {one.specifier}: pip install '{one}'"
        yield Finding("ok" if fits else "broken", name, f"{found}{way_out}")


def torch_clash(needed: Mapping[str, Requirement]) -> str:
    """A line on the first clash among `TORCH`, with its way out; empty if they fit.

    needed: what istbench requires of each.
    """
    found = {name: installed for name in TORCH if (installed := _version(name)) is not None}
    outside = [_outside(name, needed[name], found.get(name)) for name in TORCH]
    together = [*outside, *(line for name in TORCH[1:] if name in found for line in _built_for(name, found))]
    problems = "; ".join(line for line in together if line)
    ranges = {name: f"'{name}{needed[name].specifier}'" for name in TORCH}
    if outside[0]:
        way_out = f"{problems}: pip install {' '.join(ranges.values())}"
        keep = " replaces it; to keep it, give istbench an environment of its own (python3 -m venv)"
        return way_out + keep if "torch" in found else way_out
    public = found["torch"].partition("+")[0]
    audio = _torchaudio_for(public)
    others = f"{ranges['torchvision']} '{audio}'"
    if problems:
        return f"{problems}: pip install 'torch=={found['torch']}' {others}, which keeps torch"
    for name in TORCH[1:]:
        problem = _loads(name)
        if problem:
            line = f"{name} {found[name]} does not load beside torch {found['torch']} ({problem}): "
            if not Requirement(audio).specifier.contains(found["torchaudio"], prereleases=True):
                return f"{line}pip install 'torch=={found['torch']}' {others}, which keeps torch"
            return f"{line}take all from one index: pip install --force-reinstall 'torch=={public}' {others}"
    return ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _outside(name: str, needed: Requirement, found: str | None) -> str:
    if found is None:
        return f"{name} is not installed"
    return "" if needed.specifier.contains(found, prereleases=True) else f"{name} {found} is not {needed.specifier}"


def _built_for(name: str, found: Mapping[str, str]) -> Iterator[str]:
    """A line if the metadata of `name` asks for another torch."""
    for text in requires(name) or []:
        asked = Requirement(text)
        applies = asked.marker is None or asked.marker.evaluate({"extra": ""})
        if asked.name == "torch" and applies and "torch" in found:
            public = found["torch"].partition("+")[0]
            if not asked.specifier.contains(public, prereleases=True):
                yield f"{name} {found[name]} is for torch{asked.specifier}, and torch {found['torch']} is installed"


def _torchaudio_for(torch: str) -> str:
    """The torchaudio for a version of torch: of the same minor version, up to the last."""
    major, minor = torch.split(".")[:2]
    return f"torchaudio=={major}.{min(int(minor), _LAST_TORCHAUDIO)}.{'*' if int(minor) < _LAST_TORCHAUDIO else 0}"


def _loads(name: str) -> str:
    """The error of importing `name`, in a line; empty if it loads."""
    try:
        importlib.import_module(name)
    except Exception as error:  # of compiled code for another torch: OSError, RuntimeError, AttributeError
        return " ".join(str(error).split())[:200] or type(error).__name__
    return ""


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

    yield _writable("cache", cache_directory(), "set ISTBENCH_CACHE to a directory that is")


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
