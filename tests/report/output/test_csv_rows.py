"""Tables as CSV."""

import csv
import io

import pytest
from fake_clusters import BARE, write_pair
from fake_runs import header, ramp, write_run
from read_tables import printed

from istbench.report.output.formats import tables_csv
from istbench.report.report import build_report, build_report_on_clusters


def test_csv_has_one_line_a_row_and_empty_fields_for_misses(report):
    text, _ = printed(report, "csv")
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["method"], second["method"]) == ("ddp", "ist")
    assert float(first["train_s_to_0.8_median"]) > 0
    assert second["train_s_to_0.8_median"] == ""
    assert second["train_s_to_0.8_reached"] == "0"
    assert first["data"] == "synthetic"


def test_csv_of_tables_with_other_columns_has_all_of_them(results):
    write_run(results, header(), ramp(9.0))
    write_run(results, header(workload="toy", targets=[0.5]), ramp(9.0))
    speech, toy = csv.DictReader(io.StringIO(printed(build_report(results), "csv")[0]))
    assert (speech["train_s_to_0.5_median"], toy["train_s_to_0.8_median"]) == ("", "")
    assert float(toy["train_s_to_0.5_median"]) == 5.0


def test_csv_has_one_line_a_row_with_times_and_where_they_go(results):
    write_pair(results)
    text = tables_csv(build_report_on_clusters(results, {"bare": [BARE]}).tables)
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["method"], second["method"]) == ("ddp", "local_sgd")
    assert float(first["cluster_s_to_0.8_median"]) < float(first["cluster_s"])
    assert float(first["compute_percent"]) < float(second["compute_percent"])


def test_csv_keeps_rows_apart_that_differ_in_the_lab_or_the_machine(results):
    hosts = [{"lab": None}, {"lab": "links shaped to 100 Mbit/s"}, {"lab": None, "machine": "aarch64"}]
    for seconds, changed in enumerate(hosts, start=10):
        host = {"name": "laptop", "cores": 8, "machine": "x86_64", **changed}
        write_run(results, header(host=host, cell=f"ddp-{seconds}"), ramp(seconds))
    rows = list(csv.DictReader(io.StringIO(printed(build_report(results), "csv")[0])))
    assert sorted((row["lab"], row["machine"], float(row["train_s_to_0.8_median"])) for row in rows) == [
        ("", "aarch64", pytest.approx(12 * 8 / 9)),
        ("", "x86_64", pytest.approx(10 * 8 / 9)),
        ("links shaped to 100 Mbit/s", "x86_64", pytest.approx(11 * 8 / 9)),
    ]


def test_where_it_ran_is_not_said_of_a_replay(results):
    write_pair(results)
    (first, _) = csv.DictReader(io.StringIO(tables_csv(build_report_on_clusters(results, {"bare": [BARE]}).tables)))
    assert (first["host"], first["cores"], first["lab"], first["machine"]) == (BARE.name, "", "", "")
