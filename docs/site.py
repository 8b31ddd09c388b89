"""Build the documentation as a site in build/site, and fail on a broken link or anchor.

    python docs/site.py

It needs the extra `docs`. Pages keep their places, so their links to each other hold. Links to other files, such as
suites, lead to copies.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "site-pages"
_FOLDERS = ("docs", "results", "configs", "scripts")
_FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", "action.yml")
_ENDINGS = (".md", ".png", ".svg", ".csv", ".json", ".toml", ".py", ".yaml", ".ipynb", ".html")
_LINK_TO_CODE = re.compile(r"\[([^\]]*)\]\((?:\.\./)*(?:istbench|tests)/[^)]*\)")


def gather(pages: Path) -> None:
    """Copy all pages, pictures and files that pages link to into `pages`."""
    shutil.rmtree(pages, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *_FOLDERS, *_FILES],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        source, copy = ROOT / name, pages / name
        if source.suffix not in _ENDINGS and name not in _FILES:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            copy.write_text(_LINK_TO_CODE.sub(r"\1", source.read_text()))  # the site has no code
        else:
            shutil.copyfile(source, copy)
    (pages / "docs" / "api.md").write_text(_reference())


def _reference() -> str:
    """The reference of Python: what `import istbench` offers, and the contracts of plug-ins."""
    shown = (
        "istbench.api.cells.run", "istbench.api.cells.compare", "istbench.api.results", "istbench.api.estimate",
        "istbench.api.advice", "istbench.api.task", "istbench.methods.base", "istbench.workloads.base",
    )  # fmt: skip
    return "# Python reference\n\n" + "\n\n".join(f"::: {name}" for name in shown) + "\n"


def main() -> None:
    gather(PAGES)
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    sys.exit(subprocess.run(build, cwd=ROOT, env=quiet).returncode)


if __name__ == "__main__":
    main()
