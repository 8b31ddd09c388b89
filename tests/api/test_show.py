"""A report as commands show it."""

import json
import sys

import pytest
from fake_runs import write_plausible

from istbench.api import show
from istbench.api.show import page_beside, show_report
from istbench.base.errors import UserError
from istbench.cluster.profile import select_clusters
from istbench.report.report import build_report, build_report_on_clusters


def test_the_pictures_of_one_run_lie_in_its_directory_and_json_names_them(results, capsys):
    run = write_plausible(results, "ddp", traced=True).path
    show_report(build_report_on_clusters(run, select_clusters(["m5.2xlarge"])), run, output_format="json")
    document = json.loads(capsys.readouterr().out)
    drawn = document["pictures"]
    assert sorted(drawn) == sorted(str(path) for path in (run / "report").iterdir())
    assert len(drawn) == 2
    assert document["page"] is None


def test_the_page_lies_beside_the_pictures_and_is_named(results, capsys):
    write_plausible(results, "ddp", traced=True)
    show_report(build_report(results), results, page=page_beside(results))
    assert f"page: {results / 'report' / 'page.html'}" in capsys.readouterr().err
    assert "ddp on 2 nodes is the first" in (results / "report" / "page.html").read_text()


@pytest.mark.parametrize(("terminal", "output_format", "early"), [(1, "table", 1), (1, "json", 0), (0, "table", 0)])
def test_a_terminal_has_the_answer_before_the_pictures(
    results, capsys, monkeypatch, terminal, output_format, early
):
    write_plausible(results, "ddp")
    printed = []

    def draw(plots, directory):
        printed.append(capsys.readouterr().out)
        return []

    monkeypatch.setattr(show, "draw_plots", draw)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: bool(terminal))
    show_report(build_report(results), results, output_format=output_format)
    assert [bool(text) for text in (*printed, capsys.readouterr().out)] == [early, not early]


def test_without_pictures_nothing_is_written(results, capsys):
    write_plausible(results, "ddp")
    report = build_report(results)
    assert len(report.plots) == 1
    show_report(report, results, pictures=False)
    assert [path.name for path in results.iterdir()] == ["runs"]
    assert capsys.readouterr().err == ""


def test_an_unreadable_advice_is_a_line_and_costs_neither_the_table_nor_the_page(results, capsys):
    write_plausible(results, "ddp")
    advice = results / "advice.json"
    advice.write_text("{")
    show_report(build_report(results), results, page=page_beside(results))
    printed = capsys.readouterr()
    assert "accuracy" in printed.out
    assert f"left out: advice: {advice}" in printed.err
    assert f"advice: {advice}" in (results / "report" / "page.html").read_text()


def test_a_page_that_cannot_be_written_costs_no_table(results, capsys):
    write_plausible(results, "ddp")
    with pytest.raises(UserError, match="cannot write the page"):
        show_report(build_report(results), results, output_format="json", page=results / "runs")
    document = json.loads(capsys.readouterr().out)
    assert document["tables"]
    assert len(document["pictures"]) == 2
    assert document["page"] is None
