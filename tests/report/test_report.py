"""A report on a results directory."""

import os
import subprocess
import sys
from typing import get_args

import pytest
from fake_clusters import M5
from fake_runs import header, write_plausible, write_run
from read_tables import printed

from istbench.report.output.formats import Format
from istbench.report.output.pictures import draw_plots
from istbench.report.report import build_report


def test_the_report_has_the_cluster_after_the_machine(results):
    write_plausible(results, "ddp", traced=True)
    write_plausible(results, "ist")
    report = build_report(results, cluster=M5)
    assert [table.context["clock"] for table in report.tables] == ["train_s", "cluster_s", "cluster_s"]
    assert [len(table.rows) for table in report.tables] == [2, 1, 1]
    assert report.tables[0] == build_report(results).tables[0]
    assert report.problems[0].endswith("speech-ist-n2-s0")


def test_a_report_on_runs_without_any_trace_has_no_table_of_the_cluster(results):
    write_plausible(results, "ddp")
    assert len(build_report(results, cluster=M5).tables) == 1


def test_a_report_on_unfinished_runs_has_nothing_to_draw(results):
    write_run(results, header(status="running"), [])
    assert build_report(results).plots == ()


def test_a_report_is_data_and_writes_nothing(results):
    write_plausible(results, "ddp", traced=True)
    before = sorted(results.rglob("*"))
    report = build_report(results, cluster=M5)
    assert sorted(results.rglob("*")) == before
    assert report == build_report(results, cluster=M5)


def test_every_plot_has_a_file_name_of_its_own(results):
    for machine in ("x86_64", "aarch64"):
        host = {"name": "laptop", "cores": 8, "machine": machine}
        for nodes in (2, 4):
            write_plausible(results, "ddp", nodes=nodes, traced=True, host=host, cell=f"cell-{machine}-{nodes}")
    stems = [plot.stem for plot in build_report(results, cluster=M5).plots]
    assert len(stems) == 2 * 2 + 2
    assert len(set(stems)) == len(stems)


def test_a_directory_whose_name_is_no_text_is_reported_on(tmp_path):
    results = tmp_path / os.fsdecode(b"caf\xe9")
    write_plausible(results, "ddp")
    write_plausible(results, "ist").run_json.write_text("{")
    report = build_report(results)
    pictures = draw_plots(report.plots, results / "report")
    assert all(path.exists() for path in pictures)
    for output_format in get_args(Format):
        out, notes = printed(report, output_format, pictures)
        (out + notes).encode()


@pytest.mark.processes
def test_reports_start_without_torch_pandas_or_matplotlib():
    program = (
        "import sys, istbench.report.report, istbench.report.output.formats;"
        "heavy = ('torch', 'pandas', 'matplotlib', 'numpy', 'numba', 'rich');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.processes
def test_a_report_with_pictures_is_made_without_torch_or_pandas(results):
    write_plausible(results, "ddp", traced=True)
    program = (
        "import sys; from istbench.cli import main\n"
        f"try: main(['report', {str(results)!r}])\n"
        "except SystemExit: print([name for name in ('torch', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "picture: " in done.stderr
