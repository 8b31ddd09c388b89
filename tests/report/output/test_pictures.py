"""The files drawn of plots."""

import math
import os
import xml.etree.ElementTree as ElementTree

import pytest
from fake_runs import evaluation, header, ramp, write_plausible, write_run
from read_tables import group_of

from istbench.base.errors import UserError
from istbench.report.output.pictures import draw_plots
from istbench.report.plots.over_time import metric_over
from istbench.report.report import build_report


def pictures_of(results):
    return draw_plots(build_report(results).plots, results / "report")


def test_pictures_are_written_under_safe_names_as_png_and_svg(results):
    label = "../../we ird/$x^{$ <b>"
    for nodes in (2, 4):
        head = header("ist", nodes=nodes, workload_label=label, method_label="ist $\\frac{ <i>")
        write_run(results, head, ramp(9.0))
    paths = pictures_of(results)
    assert len(paths) == 4
    for path in paths:
        assert path.parent == results / "report"
        assert path.name.isascii()
        assert not set(path.name) & set("/\\$<> {}")
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            ElementTree.parse(path)
    assert pictures_of(results) == paths


def test_names_that_no_font_has_are_drawn_as_question_marks(results):
    write_run(results, header(method_label="a\x1b[31m\x00\ufffe\nb"), ramp(9.0))
    for path in pictures_of(results):
        if path.suffix == ".svg":
            assert "a?[31m???b" in "".join(ElementTree.parse(path).getroot().itertext())


def test_pictures_of_nothing_reached_and_of_diverged_runs_are_drawn(results):
    write_run(results, header("ddp"), ramp(9.0, 0.1))
    write_run(results, header("ddp", nodes=4), ramp(9.0, 0.1))
    write_run(results, header("ist"), [evaluation(0, 0.0, math.nan), evaluation(1, 0.0, math.nan)])
    assert len(pictures_of(results)) == 4


def test_a_picture_is_drawn_again_if_its_data_or_its_file_changed(results, tmp_path, monkeypatch):
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path / "cache"))
    for nodes in (2, 4):
        write_run(results, header("ist", nodes=nodes), ramp(9.0))
    paths = pictures_of(results)

    def drawn_again():
        before = [path.stat().st_ino for path in paths]
        assert pictures_of(results) == paths
        return [path.stat().st_ino != inode for path, inode in zip(paths, before, strict=True)]

    assert not any(drawn_again())
    first = paths[0].read_bytes()
    paths[0].write_bytes(paths[2].read_bytes())  # a stranger's picture
    assert drawn_again() == [True, True, False, False]
    assert paths[0].read_bytes() == first
    paths[2].unlink()
    os.mkfifo(paths[2])
    assert drawn_again() == [False, False, True, True]
    paths[3].unlink()
    assert pictures_of(results) == paths
    assert paths[3].exists()
    write_run(results, header("ddp"), ramp(9.0))
    assert all(drawn_again())
    monkeypatch.setenv("ISTBENCH_CACHE", "/dev/null")  # nothing can be kept there
    assert all(drawn_again())


def test_without_plots_there_is_no_folder(tmp_path):
    assert draw_plots([], tmp_path / "report") == []
    assert not (tmp_path / "report").exists()


def test_a_curve_of_one_point_is_a_marker_beside_the_legends(results):
    write_run(results, header("ist"), ramp(1.0)[::2])
    write_run(results, header("ddp"), ramp(100.0)[::2])
    plot = metric_over(group_of(results))
    assert [len(series.x) for series in plot.panels[0].series] == [1, 1]  # time zero is on no logarithmic axis
    _, svg = draw_plots([plot], results / "report")
    markers = [
        use.get("style", "").lower() for use in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}use")
    ]
    for series in plot.panels[0].series:
        assert sum(series.style.colour.lower() in style for style in markers) == 2


def test_an_open_ended_interval_is_drawn(results):
    for seed, value in enumerate([0.9, 0.9, 0.5]):
        for nodes in (2, 4):
            write_run(results, header("ddp", seed=seed, nodes=nodes), ramp(9.0 + seed, value))
    assert len(pictures_of(results)) == 4


def test_a_folder_that_cannot_be_written_is_named(results):
    write_plausible(results, "ddp")
    (results / "report").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write pictures to .*report.*--no-pictures"):
        pictures_of(results)
