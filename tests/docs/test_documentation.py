"""Links, pictures and commands in the documentation lead somewhere."""

import itertools
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import click
import pytest

from istbench.cli import cli
from istbench.results.header import TIMING_RULE

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/README.md")])
LINK = re.compile(r"""\]\(([^()\s]+)\)|\bsrc="([^"]+)\"""")
CODE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
OPTION = re.compile(r"--[a-z][a-z-]*")
BY_NAME = re.compile(r"""pip install (?:-\S+ )*['"]?istbench(?:\[[\w,]*\])?['"]?(?! @ )(?=[\s`'",;)]|$)""")
"""An install of the name `istbench`, which no package index has."""


def prose(page):
    return CODE.sub("", page.read_text())


def anchors(page):
    """The anchors of the headings of a page, as GitHub makes them."""
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(prose(page))]
    return {f"{name}-{plain[:place].count(name)}".removesuffix("-0") for place, name in enumerate(plain)}


def test_links_lead_to_files_and_headings():
    broken = []
    for page in PAGES:
        for found in LINK.finditer(prose(page)):
            target, _, anchor = unquote(found[1] or found[2]).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = (page.parent / target) if target else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {found[0]}")
    assert broken == []


def test_the_index_of_results_has_every_directory():
    index = (ROOT / "results" / "README.md").read_text()
    studies = [page.parent.relative_to(ROOT / "results") for page in ROOT.glob("results/*/**/README.md")]
    assert len(studies) > 10
    assert [str(study) for study in studies if f"({study}/README.md)" not in index] == []


def test_the_index_of_the_documentation_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.name for page in ROOT.glob("docs/*.md") if page.name != "README.md"]
    assert [name for name in pages if f"({name}" not in index] == []


def test_the_documentation_names_the_current_timing_rule():
    assert f"The current rule is {TIMING_RULE}." in (ROOT / "docs" / "measuring.md").read_text()


def test_no_page_and_no_message_installs_istbench_from_an_index():
    assert all(map(BY_NAME.search, ("pip install -q 'istbench[slurm]'", "`pip install istbench`")))
    assert not any(
        map(BY_NAME.search, ("pip install 'istbench[speech] @ git+URL'", "pip install istbench-0.1.0.whl"))
    )
    sources = [*PAGES, *(ROOT / "istbench").rglob("*.py"), ROOT / "action.yml"]
    assert [str(source) for source in sources if BY_NAME.search(source.read_text())] == []


def commands(page):
    """The command lines of istbench in the code of a page, with continued lines joined."""
    lines = "\n".join(CODE.findall(page.read_text())).replace("\\\n", " ").splitlines()
    return [line.split("&& ")[-1] for line in lines if re.match(r"(.* && )?istbench ", line)]


def command_of(words):
    """The command that the first words name, and the rest of the words."""
    command, context = cli, click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("name", ["README.md", "docs"])
def test_commands_in_the_documentation_exist_with_their_options(name):
    pages = [page for page in PAGES if page == ROOT / name or page.parent == ROOT / name]
    lines = [(page, line) for page in pages for line in commands(page)]
    assert len(lines) > 10
    for page, line in lines:
        words = shlex.split(line, comments=True)[1:]
        inner = words[words.index("--") + 1 :] if "--" in words else []
        for part in filter(None, [words[: len(words) - len(inner)], inner]):
            if part[0].startswith("-"):
                continue
            command, rest = command_of(part)
            known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
            if part[0] == "record":  # options after the script are the script's own
                rest = list(itertools.takewhile(lambda word: not word.endswith(".py"), rest))
            asked = {found[0] for word in rest if (found := OPTION.match(word))}
            assert asked <= {*known, "--help"}, f"{page.relative_to(ROOT)}: {line}"
