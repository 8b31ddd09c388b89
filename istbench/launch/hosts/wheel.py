"""istbench for other machines: a wheel of this checkout, and the key of its code."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import istbench
from istbench.base.errors import UserError, printable


def source_key() -> str:
    """Identifies the code of this istbench: a hash of its files."""
    folder, digest = Path(istbench.__file__).parent, hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build_wheel(scratch: Path) -> Path:
    """A wheel of this checkout, built in the empty directory `scratch`.

    Raises:
        UserError: if the wheel cannot be built, or istbench runs from no checkout.
    """
    checkout = Path(istbench.__file__).resolve().parents[1]
    if not (checkout / "setup.cfg").is_file():
        raise UserError("--install needs a checkout of istbench here; install istbench on the hosts yourself")
    source = _copy(checkout, scratch / "source")
    built = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(scratch),
            str(source),
        ],
        capture_output=True,
        text=True,
    )
    wheels = sorted(scratch.glob("istbench-*.whl"))
    if built.returncode or not wheels:
        printed = built.stderr.strip().splitlines() or ["pip printed nothing"]
        raise UserError(f"cannot build a wheel of {checkout}: {printable(printed[-1])}; install pip and setuptools")
    return wheels[-1]


def _copy(checkout: Path, folder: Path) -> Path:
    """Copy the sources of the wheel: files of an older build in the checkout would get into it."""
    shutil.copytree(checkout / "istbench", folder / "istbench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(checkout / name, folder / name)
    return folder
