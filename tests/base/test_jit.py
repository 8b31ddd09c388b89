"""Compiled functions: recompiled when any source they use has changed, and not even imported before a replay."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import istbench
from istbench.base.jit import package_of

pytestmark = pytest.mark.processes

PACKAGE = Path(istbench.__file__).parent
ROOT = PACKAGE.parent


def imported(path):
    """The modules of istbench that the file at `path` imports."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return {node.module for node in nodes if node.module.startswith("istbench")}


def output(script, root):
    """What `script` prints, with the istbench in folder `root`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_compiled_functions_use_only_what_their_cache_is_named_after():
    compiled = [path for path in PACKAGE.rglob("*.py") if "istbench.base.jit" in imported(path)]
    assert len(compiled) >= 5
    for path in compiled:
        own = package_of(".".join(path.relative_to(ROOT).parts))
        used = imported(path) - {"istbench.base.jit"}
        assert {name for name in used if package_of(name) != own} == set(), path


def test_a_change_of_any_source_they_use_names_another_cache(tmp_path):
    shutil.copytree(ROOT / "istbench", tmp_path / "istbench", ignore=shutil.ignore_patterns("__pycache__"))
    script = "from istbench.base.cache import sources_digest; print(sources_digest('cluster'))"
    found = {output(script, tmp_path)}
    for name in ("trace.py", "simulator/state.py", "simulator/links.py"):
        source = tmp_path / "istbench" / "cluster" / name
        source.write_text(source.read_text() + "\nCHANGED = True\n")
        found.add(output(script, tmp_path))
    assert len(found) == 4


def test_an_installed_package_leaves_nothing_compiled_among_what_pip_removes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place, cache in (("checkout", "checkout/istbench/__pycache__"), ("site-packages", "cache/istbench")):
        folder = tmp_path / place / "istbench"
        shutil.copytree(ROOT / "istbench", folder, ignore=shutil.ignore_patterns("__pycache__"))
        script = "from istbench.base.jit import _cache; print(_cache())"
        assert output(script, folder.parent) == str(tmp_path / cache)


def test_numba_is_imported_by_the_first_replay_only():
    script = "import sys; from istbench.cluster.simulator import replay; print('numba' in sys.modules)"
    assert output(script, ROOT) == "False"


@pytest.mark.parametrize(
    "needs_numba",
    [
        "from istbench.cluster.simulator.simulate import simulation; simulation(10**6)",
        "import istbench.methods.slide.kernels",
    ],
)
@pytest.mark.parametrize(
    ("before", "start", "end"),
    [
        ("sys.modules['numba'] = None", "numba does not load: ", "; install it again: pip install --upgrade numba"),
        ("os.environ['NUMBA_DISABLE_JIT'] = '1'", "NUMBA_DISABLE_JIT keeps numba from compiling", "; unset it"),
    ],
)
def test_a_numba_that_does_not_load_or_compile_is_named_in_one_line(needs_numba, before, start, end):
    script = f"""
import os, sys
from istbench.base.errors import UserError
{before}
try: exec({needs_numba!r})
except UserError as error: print(error)
"""
    said = output(script, ROOT)
    assert said.startswith(start)
    assert said.endswith(end)
    assert "\n" not in said
