"""istbench's own suites by name."""

import configparser
import sysconfig
from pathlib import Path

import pytest

from istbench.base.errors import UserError
from istbench.base.options.suite import read_suite, suite_file
from istbench.base.shipped import suites_folder

ROOT = Path(__file__).parents[3]


def test_a_name_is_the_suite_of_istbench_and_a_file_stays_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_suite(Path("smoke")) == read_suite(ROOT / "configs/smoke.toml")
    assert suite_file(Path("light/grid")) == ROOT / "configs/light/grid.toml"
    Path("quick").write_text("")
    assert suite_file(Path("quick")) == Path("quick")
    Path("smoke").mkdir()  # such as the --out of an earlier `compare smoke --out smoke`
    assert suite_file(Path("smoke")).name == "smoke.toml"
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


@pytest.mark.parametrize("place", ["site", "prefix", "user"])
def test_without_a_checkout_the_suites_are_those_of_the_installation(tmp_path, monkeypatch, place):
    """pip puts them beside the package (--target), below the prefix, or below the user's (--user)."""
    folder = tmp_path / place / "share/istbench/configs"
    folder.mkdir(parents=True)
    monkeypatch.setattr("istbench.base.shipped._PACKAGE", tmp_path / "site/istbench")
    schemes = {sysconfig.get_default_scheme(): "prefix", sysconfig.get_preferred_scheme("user"): "user"}
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme: f"{tmp_path}/{schemes[scheme]}")
    assert suites_folder() == folder
