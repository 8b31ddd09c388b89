"""Whether the installed torch, torchvision and torchaudio fit istbench and each other."""

import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

TORCH = ("torch", "torchvision", "torchaudio")
"""Each version of the others is built for one of torch, so they change together."""
_LAST_TORCHAUDIO = 11  # torchaudio 2.11.0 serves torch 2.12 too; 2.11.1 does not load beside it


def torch_clash(needed: Mapping[str, "Requirement"]) -> str:
    """A line on the first clash among `TORCH`, with its way out; empty if they fit.

    needed: what istbench requires of each.
    """
    from packaging.requirements import Requirement

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


def _outside(name: str, needed: "Requirement", found: str | None) -> str:
    if found is None:
        return f"{name} is not installed"
    return "" if needed.specifier.contains(found, prereleases=True) else f"{name} {found} is not {needed.specifier}"


def _built_for(name: str, found: Mapping[str, str]) -> Iterator[str]:
    """A line if the metadata of `name` asks for another torch."""
    from packaging.requirements import Requirement

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
