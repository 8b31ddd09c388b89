"""What the nodes of each run do, as a table and in a run's summary."""

import csv
import io
import json

import pytest
from fake_runs import header, ramp, write_run
from read_tables import column, footer, printed

from istbench.report.report import build_report
from istbench.report.tables.summary import run_summary
from istbench.results.load import load_run

HOSTS = ("alpha", "beta")


def in_lab(method):
    head = header(method, cell=f"{method}-in-a-lab")
    return {**head, "host": {**head["host"], "lab": "links shaped to 100 Mbit/s"}}


def by_node(results):
    (table,) = [table for table in build_report(results).tables if "by node" in table.title]
    return table


def test_a_slow_node_has_a_name(results):
    for seed, slow in enumerate((19.0, 17.0, 18.0)):
        write_run(results, header("ddp", seed=seed), ramp(20.0), computing=(9.0, slow), hosts=HOSTS)
    write_run(results, header("ist"), ramp(20.0), computing=(10.0, 10.5), hosts=HOSTS)
    write_run(results, header("p3"), ramp(20.0))
    table = by_node(results)
    assert [row[0].text for row in table.rows] == ["ddp", "ist"]
    assert column(table, "computing_s")["ddp", 2].text == "9.00 to 18.0"
    assert column(table, "waiting_s")["ddp", 2].value == {
        "least": 2.0, "median": 6.5, "most": 11.0, "rank_0": 11.0, "rank_1": 2.0,
    }  # fmt: skip
    slowest = column(table, "slowest_node")
    assert slowest["ddp", 2].text == "rank 1 (beta)"
    assert slowest["ddp", 2].value == {"rank": 1, "host": "beta"}
    assert slowest["ist", 2].value is None
    assert column(table, "waited_for_slowest_s")["ddp", 2].value == pytest.approx(9.0)
    assert "share its cores" not in footer(table)


def test_nodes_of_one_machine_share_its_cores_and_those_of_a_lab_do_not(results):
    write_run(results, header("ddp"), ramp(20.0), computing=(9.0, 19.0))
    assert "waiting for a core counts as computing" in footer(by_node(results))
    write_run(results, in_lab("ddp"), ramp(20.0), computing=(9.0, 19.0))
    (of_lab,) = [t for t in build_report(results).tables if "by node" in t.title and t.context["lab"]]
    assert "share its cores" not in footer(of_lab)


def test_runs_that_did_not_measure_it_have_no_such_table(results):
    write_run(results, header("ddp"), ramp(20.0))
    write_run(results, header("ist", nodes=1), ramp(20.0), computing=(9.0,))
    assert not [table for table in build_report(results).tables if "by node" in table.title]


def test_programs_have_every_node(results):
    write_run(results, header("ddp"), ramp(20.0), computing=(9.0, 19.0), hosts=HOSTS)
    report = build_report(results)
    (row,) = csv.DictReader(io.StringIO(printed(report, "csv")[0]))
    assert (row["computing_s_rank_1"], row["slowest_node_host"]) == ("19.0", "beta")
    (_, table) = json.loads(printed(report, "json")[0])["tables"]
    assert table["rows"][0]["waiting_s"]["rank_0"] == 11.0


def test_the_summary_names_the_slowest_and_the_fastest_node(results):
    run = load_run(write_run(results, header("ddp"), ramp(20.0), computing=(9.0, 19.0), hosts=HOSTS))
    table = run_summary(run)
    items = {row[0].text: row[1].text for row in table.rows}
    assert items["computing seconds per node"] == "9.00 to 19.0"
    assert items["waiting seconds per node"] == "1.00 to 11.0"
    assert (
        "Slowest node: rank 1 (beta) computed 19.0 s. Fastest: rank 0 (alpha), 9.00 s. The others waited about "
        "10.0 s for the slowest. Rank 1 computes at 0.47 of the others' speed; the other waits for it in 50% of "
        "the train seconds."
    ) in table.footer
    even = load_run(write_run(results, header("ist"), ramp(20.0), computing=(9.0, 9.5), hosts=HOSTS))
    assert "Slowest" not in footer(run_summary(even))
