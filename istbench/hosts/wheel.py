"""istbench for other machines: a wheel of this checkout, or a requirement of pip."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import istbench
from istbench.errors import UserError, printable


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that other machines install.

    Attributes:
        wheel: a file to copy there; None if pip downloads the requirement.
        requirement: a requirement of pip, or the digest of the content of the wheel.
    """

    wheel: Path | None
    requirement: str

    @property
    def key(self) -> str | None:
        """The key of the wheel in a bucket."""
        return f"wheel/{self.requirement}/{self.wheel.name}" if self.wheel else None


def source_key() -> str:
    """Identifies the code of this istbench: a hash of its files."""
    folder, digest = Path(istbench.__file__).parent, hashlib.sha256()
    for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.toml"))):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def package(requirement: str | None, scratch: Path) -> Package:
    """The `requirement`, else a wheel of this checkout, built in `scratch`; without a checkout, this version.

    Raises:
        UserError: if the wheel cannot be built.
    """
    if requirement is not None:
        return Package(wheel=None, requirement=requirement)
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
        raise UserError(
            f"cannot build a wheel of {checkout}: {printable(said[-1])}; install pip and setuptools, or name a "
            "`requirement` of pip for AWS"
        )
    return Package(wheel=wheels[-1], requirement=_digest(wheels[-1]))


def _copy(checkout: Path, folder: Path) -> Path:
    """Copy the sources of the wheel: files of an older build in the checkout would get into it."""
    shutil.copytree(checkout / "istbench", folder / "istbench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(checkout / name, folder / name)
    return folder


def _digest(wheel: Path) -> str:
    """A digest of the content, which does not depend on the time of building."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            digest.update(f"{entry.filename}\0{entry.CRC}\0".encode())
    return digest.hexdigest()[:16]
