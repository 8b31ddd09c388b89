"""How istbench itself gets to the machines: a wheel of this checkout, or a requirement of pip's."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import istbench
from istbench.aws.spec import ClusterSpec
from istbench.errors import UserError, printable


@dataclass(frozen=True, kw_only=True)
class Package:
    """What the machines install.

    Attributes:
        wheel: a file to take there; None where pip gets it by itself. requirement: as pip takes it, or, of a wheel,
            the digest of what is in it.
    """

    wheel: Path | None
    requirement: str

    @property
    def key(self) -> str | None:
        """Where the wheel lies in the bucket."""
        return f"wheel/{self.requirement}/{self.wheel.name}" if self.wheel else None


def package(spec: ClusterSpec, scratch: Path) -> Package:
    """What the spec asks for; else a wheel of the checkout that runs this, made in `scratch`; else this version.

    Raises:
        UserError: where the wheel cannot be made.
    """
    if spec.requirement is not None:
        return Package(wheel=None, requirement=str(spec.requirement))
    checkout = Path(istbench.__file__).resolve().parents[1]
    if not (checkout / "setup.cfg").is_file():
        return Package(wheel=None, requirement=f"istbench[speech,aws]=={istbench.__version__}")
    source = _copy(checkout, scratch / "source")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(scratch), str(source)],
        capture_output=True,
        text=True,
    )
    wheels = sorted(scratch.glob("istbench-*.whl"))
    if built.returncode or not wheels:
        said = built.stderr.strip().splitlines() or ["pip says nothing"]
        raise UserError(f"no wheel of {checkout}: {printable(said[-1])}; or give the spec a `requirement`")
    return Package(wheel=wheels[-1], requirement=_digest(wheels[-1]))


def _copy(checkout: Path, folder: Path) -> Path:
    """What a wheel is made of, apart: what setuptools left of an older build in the checkout would get into it."""
    shutil.copytree(checkout / "istbench", folder / "istbench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(checkout / name, folder / name)
    return folder


def _digest(wheel: Path) -> str:
    """Of the content: another time of building is no other wheel."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            digest.update(f"{entry.filename}\0{entry.CRC}\0".encode())
    return digest.hexdigest()[:16]
