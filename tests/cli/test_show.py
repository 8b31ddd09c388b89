"""A report as commands show it."""

import json

from fake_runs import write_plausible

from istbench.cli.show import show_report
from istbench.cluster.profile import select_clusters
from istbench.report.on_clusters import build_report_on_clusters
from istbench.report.report import build_report


def test_the_pictures_of_one_run_lie_in_its_directory_and_json_names_them(results, capsys):
    run = write_plausible(results, "ddp", traced=True).path
    show_report(build_report_on_clusters(run, select_clusters(["m5.2xlarge"])), run, output_format="json")
    drawn = json.loads(capsys.readouterr().out)["pictures"]
    assert sorted(drawn) == sorted(str(path) for path in (run / "report").iterdir())
    assert len(drawn) == 4


def test_without_pictures_nothing_is_written(results, capsys):
    write_plausible(results, "ddp")
    report = build_report(results)
    assert len(report.plots) == 2
    show_report(report, results, pictures=False)
    assert [path.name for path in results.iterdir()] == ["runs"]
    assert capsys.readouterr().err == ""
