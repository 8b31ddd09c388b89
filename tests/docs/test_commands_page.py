"""The page of all commands: what docs/commands.py writes, exit statuses and environment variables."""

import importlib.util
import re
from pathlib import Path

import pytest

from istbench import cli
from istbench.base.interrupts import EXIT_INTERRUPTED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/commands.md").read_text()
OF_OURS = {"ISTBENCH_HOST", "ISTBENCH_REASON", "ISTBENCH_RUN_FOLDER", "ISTBENCH_RUN_KEY"}
"""Variables that processes of istbench set for each other."""


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("commands_page", ROOT / "docs/commands.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_that_of_the_commands(maker):
    assert maker.page() == PAGE, "the help of a command changed; write the page anew: python docs/commands.py"


def test_every_option_has_its_line_below_its_command(maker):
    parts = dict(re.findall(r"^## istbench (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))
    assert {"run", "compare", "lab", "lab validate", "new task"} <= parts.keys()
    for name, options in {
        "run": ["--elastic", "--shares"],
        "replay": ["--mtbf"],
        "lab validate": ["--scaling"],
    }.items():
        for flag in options:
            assert f"\n- `{flag}" in parts[name]
    assert "Default: `0`" in parts["run"]


def test_the_page_has_all_exit_statuses():
    known = {0, cli.EXIT_FAILED, cli.EXIT_WRONG_USE, cli.EXIT_TARGET_MISSED, cli.EXIT_FAIL_IF, EXIT_INTERRUPTED}
    assert {int(found) for found in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == known


def test_the_page_has_all_environment_variables_of_users():
    used = {
        name
        for file in (ROOT / "istbench").rglob("*.py")
        for name in re.findall(r"ISTBENCH_[A-Z_]+", file.read_text())
    }
    assert {name for name in used - OF_OURS if name not in PAGE} == set()
