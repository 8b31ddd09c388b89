"""The container: the order of its layers, and its steps as they stand in a namespace with a root of its own.

No builder is needed. Three things replace those of a builder: the base image is this machine's /usr and Python, the
package index is the test environment with a new setuptools (pip finds all installed), and layers are directories.
"""

import configparser
import fnmatch
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from istbench import __version__

ROOT = Path(__file__).parents[2]
_USR = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_TIMEOUT_S = 200
_PATH = "/image/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USER = 1000
_OWN = ("istbench", "__editable__", "pip", "setuptools", "pkg_resources", "__pycache__")


@dataclass
class Stage:
    """A stage of the Dockerfile: its name, its base, its instructions."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def copies(self):
        return [shlex.split(text) for word, text in self.steps if word == "COPY"]


def stages():
    """The stages of the Dockerfile, the last one that of the image."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found, arguments = list[Stage](), {}
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = string.Template(rest).substitute(arguments).partition(" AS ")
            found.append(Stage(name or "image", base))
        elif word == "ARG" and not found:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word:
            found[-1].steps.append((word, rest.strip()))
    return found


def context():
    """The files that a builder takes from the checkout."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    return [name for name in filter(None, listed) if not _ignored(Path(name), rules)]


def _ignored(path, rules):
    ignored = False
    for rule in rules:
        names = [str(path), *map(str, path.parents)]
        pattern = rule.removeprefix("!").removeprefix("**/")
        parts = path.parts if rule.startswith("**/") else names
        if any(fnmatch.fnmatchcase(name, pattern) for name in parts if name != "."):
            ignored = not rule.startswith("!")
    return ignored


def test_a_change_of_the_code_installs_no_requirement_again():
    requirements, build, image = stages()
    assert requirements.copies() == [["setup.cfg", "."]]
    (install,) = [text for word, text in requirements.steps if "pip install" in text]
    assert "${PIP_OPTIONS}" in install
    assert (build.base, build.copies()) == ("requirements", [[".", "."]])
    assert " --no-deps " in build.steps[-1][1]
    assert [found[0] for found in image.copies()] == ["--from=requirements", "--from=build"]


def test_the_image_is_small_and_without_root():
    requirements, _, image = stages()
    assert image.base == requirements.base == "python:3.12-slim"
    words = [word for word, _ in image.steps]
    assert words.index("USER") > max(place for place, word in enumerate(words) if word in ("RUN", "COPY"))
    assert not re.search(r"\bapt|\bpip\b|gcc|https?:", (ROOT / "Dockerfile").read_text().partition("-slim\nRUN")[2])
    sent = context()
    assert {Path(name).parts[0] for name in sent} == {
        "LICENSE", "README.md", "configs", "istbench", "pyproject.toml", "setup.cfg"
    }  # fmt: skip
    assert not any("__pycache__" in name for name in sent)


@pytest.fixture
def bound(tmp_path):
    """What stands for the base image and for the package index: paths that are mounted, and the packages."""
    if reason := _why_not():
        pytest.skip(reason)
    places = [Path(path) for path in sys.path if path.endswith("site-packages")]
    packages = tmp_path / "packages"
    packages.mkdir()
    for place in places:
        for entry in place.iterdir():
            own = entry.name.startswith(_OWN) or entry.suffix == ".pth"
            if not own and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    asked = [*pip, "--target", str(packages), "setuptools>=70.1,<82"]
    installed = subprocess.run(asked, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"no setuptools to build with: {installed.stderr.strip().splitlines()[-1]}")
    return [Path(sys.base_prefix), *places, packages]


def _made(tmp_path, bound):
    """Run the steps of all stages; returns the root of the image, its variables, its directory and its words."""
    sent = tmp_path / "context"
    for name in context():
        (sent / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, sent / name)
    roots, variables = {"context": sent}, {}
    for stage in stages():
        root, place, user, words = tmp_path / stage.name, "/", "root", {}
        given = {"PATH": _PATH}
        if stage.base in roots:
            shutil.copytree(roots[stage.base], root, symlinks=True)
            given, place = variables[stage.base]
            given = dict(given)
        else:
            _base(root, bound)
        for word, text in stage.steps:
            if word in ("ARG", "ENV"):
                for part in shlex.split(text):
                    name, _, value = part.partition("=")
                    given[name] = string.Template(value).safe_substitute(given)
            elif word == "WORKDIR":
                place = text
                (root / place[1:]).mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                *options, source, target = shlex.split(text)
                _copy(
                    roots[options[0].partition("=")[2] if options else "context"], source, root, Path(place, target)
                )
            elif word == "USER":
                user = text
            elif word == "RUN":
                done = _run(root, bound, given, place, user, ["sh", "-c", text])
                assert done.returncode == 0, f"{stage.name}: {text}\n{done.stdout}{done.stderr}"
            else:
                assert word in ("VOLUME", "ENTRYPOINT", "CMD"), word
                words[word] = json.loads(text) if word != "VOLUME" else text
        roots[stage.name], variables[stage.name] = root, (given, place)
    return root, given, place, user, words


def _base(root, bound):
    """A root whose programs and libraries are those of this machine."""
    for name in ("etc", "tmp", "proc", "dev", "sys", "var/cache", "home", "image/bin", "root"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "image/bin/python").symlink_to(Path(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}"))
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for name in ("login.defs", "nsswitch.conf", "ld.so.cache"):
        if Path("/etc", name).exists():
            shutil.copy2(Path("/etc", name), root / "etc" / name)
    for name in _USR:
        there = Path("/", name)
        if there.is_symlink():
            (root / name).symlink_to(there.readlink())
        elif there.is_dir():
            (root / name).mkdir()
    for path in bound:
        (root / str(path)[1:]).mkdir(parents=True, exist_ok=True)


def _copy(source_root, source, root, target):
    source = source_root / source.lstrip("/")
    target = root / os.path.normpath(target).lstrip("/")
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def _run(root, bound, given, place, user, words):
    """Run `words` in `root`, in a mount namespace where programs, libraries and packages cannot be written."""
    read_only = [Path("/", name) for name in _USR if not Path("/", name).is_symlink() and Path("/", name).is_dir()]
    lines = ["set -e"]
    for path in [*read_only, *bound]:
        there = shlex.quote(f"{root}{path}")
        lines.append(f"mount --bind {shlex.quote(str(path))} {there} && mount -o remount,bind,ro {there}")
    lines += [f"mount --rbind /{name} {shlex.quote(f'{root}/{name}')}" for name in ("proc", "dev", "sys")]
    # No index: pip finds the requirements of istbench, and of its build, among the packages.
    index = {
        "PYTHONPATH": str(bound[-1]),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_WARN_SCRIPT_LOCATION": "1",
    }
    home = {"HOME": "/root" if user == "root" else f"/home/{user}"}
    environment = [f"{name}={value}" for name, value in {**given, **home, **index}.items()]
    inner = shlex.join(["sh", "-c", f'cd {shlex.quote(place)} && exec "$@"', "sh", *words])
    enter = shlex.join(["chroot", f"--userspec={user}", str(root), "env", "-i", *environment])
    lines.append(f"exec {enter} {inner}")
    return subprocess.run(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", "\n".join(lines)],
        text=True, capture_output=True, timeout=_TIMEOUT_S,
    )  # fmt: skip


def _why_not():
    if sys.platform != "linux" or os.getuid():
        return "a root directory of one's own needs Linux and root"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return tried.stderr.strip() and f"no mount namespace: {tried.stderr.strip()}"


@pytest.mark.processes
def test_the_steps_of_the_image_end_in_a_run_without_root(tmp_path, bound):
    root, given, place, user, words = _made(tmp_path, bound)
    assert (place, user, words["VOLUME"]) == ("/workspace", "istbench", "/workspace")

    def container(*asked):
        done = _run(root, bound, given, place, user, [*words["ENTRYPOINT"], *asked])
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert container("--version") == f"istbench, version {__version__}\n"
    assert "compare" in container(*words["CMD"])
    trained = json.loads(
        container("run", "--workload", "toy", "--method", "ddp", "--nodes", "2", "--steps", "8", "--json")
    )
    (run,) = (root / "workspace/results/runs").iterdir()
    assert run.name == trained["cell"]
    assert {path.stat().st_uid for path in (root / "workspace").rglob("*")} == {_USER}
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for folder, patterns in setup["options.data_files"].items():
        for file in (file for pattern in patterns.split() for file in ROOT.glob(pattern)):
            assert (root / "opt/istbench" / folder / file.name).read_bytes() == file.read_bytes()
    denied = _run(root, bound, given, place, user, ["touch", "/opt/istbench/bin/x"])
    assert "Permission denied" in denied.stderr
