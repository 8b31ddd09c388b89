"""Check the chart libraries that come with istbench, or fetch them again from their npm packages.

    python scripts/vendor_charts.py --fetch

prints the version, size and SHA-256 of each file in istbench/report/output/html/vendor, and ends with status 1 if a
file is not the one of its package. --fetch needs `npm` and a network: it packs each package, refuses a file
with another digest than the table below, and writes the files and their licences. For a new version, change the
table; a wrong digest prints the right one.

    python scripts/vendor_charts.py    # to try it
"""

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "istbench" / "report" / "output" / "html" / "vendor"


@dataclass(frozen=True, kw_only=True)
class Library:
    """A file of an npm package: its version, its place in the package, and the SHA-256 of its content."""

    package: str
    version: str
    path: str
    sha256: str

    @property
    def file(self) -> Path:
        return VENDOR / Path(self.path).name

    @property
    def licence(self) -> Path:
        """The licence of the package in the repository."""
        return VENDOR / f"{self.package}.LICENSE"


LIBRARIES = (
    Library(
        package="vega",
        version="6.4.0",
        path="build/vega.min.js",
        sha256="8f6a3587cf8d4f42c7e08120e3eb05d067e746d554e39d2dcf52acc0bd5ba28f",
    ),
    Library(
        package="vega-lite",
        version="6.5.0",
        path="build/vega-lite.min.js",
        sha256="83e215e84e308ee8688fa6503ba0f1cf8a3c05c0d61df2841a0b92bf86809e00",
    ),
    Library(
        package="vega-interpreter",
        version="2.3.2",
        path="build/vega-interpreter.js",
        sha256="c0bdb735a63f9276f136e8d90d7fdf5d8e9df8031eb069048fc9975c876fd7f9",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="fetch them again")
    if parser.parse_args().fetch:
        for library in LIBRARIES:
            fetch(library)
    wrong = 0
    for library in LIBRARIES:
        content = library.file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        wrong += digest != library.sha256
        state = "as in its package" if digest == library.sha256 else "NOT the file of its package"
        print(f"{library.package} {library.version}: {len(content):,} bytes, sha256 {digest}, {state}")
    return 1 if wrong else 0


def fetch(library: Library) -> None:
    """Write the file of `library` and its licence."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ["npm", "pack", "--silent", f"{library.package}@{library.version}"]
        subprocess.run(asked, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (packed,) = Path(folder).glob("*.tgz")
        with tarfile.open(packed) as archive:
            content = _member(archive, f"package/{library.path}")
            licence = _member(archive, "package/LICENSE")
    found = hashlib.sha256(content).hexdigest()
    if found != library.sha256:
        sys.exit(f"{library.package} {library.version}: {library.path} has sha256 {found}, not {library.sha256}")
    library.file.write_bytes(content)
    library.licence.write_bytes(licence)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


if __name__ == "__main__":
    sys.exit(main())
