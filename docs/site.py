"""Build the documentation as a site in build/site, and fail on a broken link or anchor.

    python docs/site.py

It needs the extra `docs`. Pages keep their places, so their links to each other hold. Links to other files, such as
suites, lead to copies. A notebook becomes a page, with the outputs that it holds.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
            text = source.read_text().replace(".ipynb)", ".md)")
            copy.write_text(_LINK_TO_CODE.sub(r"\1", text))  # the site has no code
        elif source.suffix == ".ipynb":
            copy.with_suffix(".md").write_text("\n\n".join(_notebook(json.loads(source.read_text()))) + "\n")
        else:
            shutil.copyfile(source, copy)
    (pages / "docs" / "api.md").write_text(_reference())


def _notebook(notebook: dict[str, Any]) -> Iterator[str]:
    """The blocks of a notebook as Markdown: its texts, its code, and of each output the richest form."""
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for output in cell.get("outputs", ()):
            forms = {name: "".join(form) for name, form in output.get("data", {}).items()}
            if "image/png" in forms:
                picture = f"data:image/png;base64,{forms['image/png'].strip()}"
                yield f'<img alt="The picture of the cell above" src="{picture}">'
            elif "text/html" in forms:
                yield f'<div class="output" markdown="0">{forms["text/html"]}</div>'
            else:
                yield f"```\n{forms.get('text/plain') or ''.join(output.get('text', ''))}\n```"


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
