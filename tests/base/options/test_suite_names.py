"""istbench's own suites by name."""

import configparser
from pathlib import Path

import pytest

from istbench.base.errors import UserError
from istbench.base.options.suite import read_suite, suite_file, suites_folder

ROOT = Path(__file__).parents[3]


def test_a_name_is_the_suite_of_istbench_and_a_file_stays_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_suite(Path("smoke")) == read_suite(ROOT / "configs/smoke.toml")
    assert suite_file(Path("light/grid")) == ROOT / "configs/light/grid.toml"
    Path("quick").write_text("")
    assert suite_file(Path("quick")) == Path("quick")
    with pytest.raises(UserError, match=r"unknown suite 'smok'; did you mean 'smoke'\? Known: .*quick"):
        read_suite(Path("smok"))
    with pytest.raises(UserError, match=r"none\.toml"):
        read_suite(Path("none.toml"))


def test_a_wheel_has_every_suite_and_task():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    packed = {
        path.relative_to(ROOT / "configs").parent.as_posix()
        for pattern in parser["options.data_files"].values()
        for path in ROOT.glob(pattern)
    }
    files = {path for pattern in parser["options.data_files"].values() for path in ROOT.glob(pattern)}
    assert files == {path for path in (ROOT / "configs").rglob("*") if path.suffix in (".toml", ".py")}
    for folder, pattern in parser["options.data_files"].items():
        assert folder.removeprefix("share/istbench/") == Path(pattern).parent.as_posix()
    assert packed == {".", "light", "paper", "tasks"}


def test_without_a_checkout_the_suites_are_those_of_the_installation(monkeypatch):
    monkeypatch.setattr("istbench.base.options.suite.__file__", "/lib/site-packages/istbench/base/options/suite.py")
    monkeypatch.setattr("sysconfig.get_path", lambda name: f"/prefix/{name}")
    assert suites_folder() == Path("/prefix/data/share/istbench/configs")
