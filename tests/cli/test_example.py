"""The recorded results that istbench brings along: small, of this istbench's rules, read from any folder."""

import configparser
import json
from pathlib import Path

import pytest

import istbench as package
from istbench.base.options.suite import read_suite
from istbench.base.shipped import example_results
from istbench.results.header import SCHEMA, TIMING_RULE
from istbench.results.load import load_runs

ROOT = Path(__file__).parents[2]


def files_of_the_example():
    return {path: path.stat().st_mtime_ns for path in example_results().rglob("*")}


@pytest.fixture(autouse=True)
def only_read(tmp_path, monkeypatch):
    """An empty working directory, and an example that no command changes."""
    monkeypatch.chdir(tmp_path)
    before = files_of_the_example()
    yield
    assert files_of_the_example() == before


def test_its_runs_are_those_of_its_suite_and_of_these_rules():
    runs, problems = load_runs(example_results())
    assert problems == []
    headers = [run.header for run in runs]
    assert {(header.schema, header.timing_rule, header.status) for header in headers} == {
        (SCHEMA, TIMING_RULE, "done")
    }
    (suite,) = read_suite(ROOT / "configs/example.toml")
    wanted = {(request.method, request.nodes, request.seed) for request in suite.requests()}
    assert {(header.method, header.nodes, header.seed) for header in headers} == wanted
    assert len(headers) == len(wanted)
    assert len({header.seed for header in headers}) == 3
    assert not any("/" in header.data_source.path for header in headers)  # of the machine that recorded them


def test_a_wheel_has_all_of_it_and_it_is_small():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    folder = ROOT / "istbench"
    patterns = parser["options.package_data"]["istbench"].split()
    packed = {path for pattern in patterns for path in folder.glob(pattern)}
    files = {path for path in files_of_the_example() if path.is_file()}
    assert files <= packed
    assert sum(path.stat().st_size for path in files) < 500_000


def test_report_answers_and_writes_nothing(istbench, tmp_path):
    status, printed, _ = istbench("report", "--example")
    assert status == 0
    assert "to accuracy" in printed
    assert {line.split()[0] for line in printed.splitlines() if "  2  " in line} == {"ddp", "ist", "local_sgd"}
    assert list(tmp_path.iterdir()) == []


def test_pictures_and_the_page_go_to_the_directory_and_the_file_of_the_user(istbench, tmp_path):
    status, _, said = istbench("report", "--example", "first", "--html", "page.html")
    assert status == 0
    assert "page: page.html" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "page.html"]
    assert [path.name for path in (tmp_path / "first").iterdir()] == ["report"]
    title = "speech hidden=512 clips_per_word=100: ddp, ist and local_sgd on 2 nodes"
    assert f"<h1>{title}</h1>" in (tmp_path / "page.html").read_text()


def test_map_lists_its_cells_without_a_picture(istbench, tmp_path):
    status, printed, _ = istbench("map", "--example", "--bandwidth", "100mbit,1gbit", "--json")
    assert status == 0
    cells = json.loads(printed)
    assert [(cell["bandwidth"], cell["verdict"]) for cell in cells] == [(1e8, "first"), (1e9, "first")]
    assert list(tmp_path.iterdir()) == []


def test_replay_reads_it_too(istbench, tmp_path):
    status, printed, _ = istbench("replay", "--example", "--bandwidth", "100mbit")
    assert status == 0
    assert "100 Mbit/s" in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["report", "map", "replay"])
def test_pictures_need_a_directory(istbench, command):
    status, _, said = istbench(command, "--example", "--pictures")
    assert status == 2
    assert said == f"istbench: --pictures of --example need a directory: istbench {command} --example first\n"
    assert istbench(command, "--example", "--no-pictures")[0] == 0


def test_python_loads_it_by_name_unless_a_directory_has_the_name(tmp_path):
    results = package.load("example")
    assert set(results.runs.method) == {"ist", "local_sgd", "ddp"}
    assert results.time_to(0.6).seconds.notna().all()
    (tmp_path / "example").mkdir()
    with pytest.raises(package.UserError, match=r"no runs in example"):
        package.load("example")
