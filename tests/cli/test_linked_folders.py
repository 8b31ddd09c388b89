"""A command refuses a link in the place of a folder that it makes beside the results."""

import pytest
from fake_runs import averaging_trace, header, ramp, write_run

RUN = "runs/speech-ist-n2-s0"


@pytest.fixture
def results(tmp_path):
    for method in ("ddp", "ist"):
        write_run(tmp_path / "results", header(method), ramp(9.0), trace=averaging_trace())
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("words", "folder", "way_out"),
    [
        (["report", "."], "report", "--no-pictures"),
        (["replay", "."], "report", "--no-pictures"),
        (["map", "."], "report", "--no-pictures"),
        (
            ["timeline", "--cluster", "m5.2xlarge", RUN],
            f"{RUN}/timeline",
            "--out",
        ),
        (["export", "--format", "mllog", "."], "mllog", "--out"),
        (["export", "--format", "chakra", "."], "chakra", "--out"),
    ],
)
def test_a_folder_beside_the_results_that_is_a_link_is_not_written(
    results, tmp_path, istbench, monkeypatch, words, folder, way_out
):
    home = tmp_path / "home"
    home.mkdir()
    (results / folder).symlink_to(home)
    monkeypatch.chdir(results)
    status, _, said = istbench(*words)
    assert status == 2
    (line,) = [line for line in said.splitlines() if "symbolic link" in line]
    assert f"{folder} is a symbolic link, and istbench writes through none; delete it, or " in line
    assert way_out in line
    assert list(home.iterdir()) == []


def test_the_results_may_be_a_link_of_the_user_and_old_pictures_links_of_anybody(results, tmp_path, istbench):
    (tmp_path / "here").symlink_to(results)
    assert istbench("map", tmp_path / "here")[0] == 0
    (picture,) = (results / "report").glob("*.png")
    private = tmp_path / "private"
    private.write_text("mine")
    picture.unlink()
    picture.symlink_to(private)
    assert istbench("map", tmp_path / "here")[0] == 0
    assert private.read_text() == "mine"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("linked", ["runs", RUN])
def test_a_run_elsewhere_gets_no_files_and_its_results_none(results, tmp_path, istbench, linked):
    home = tmp_path / "home" / "private"
    home.parent.mkdir()
    (results / linked).rename(home)
    (results / linked).symlink_to(home)
    before = sorted(tmp_path.rglob("home/**/*"))
    status, _, said = istbench("timeline", "--cluster", "m5.2xlarge", results / RUN)
    assert (status, "is a symbolic link, and istbench writes through none" in said) == (2, True)
    istbench("export", "--format", "mllog", results)
    assert sorted(tmp_path.rglob("home/**/*")) == before
