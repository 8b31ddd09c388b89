"""The names that a report is asked for by."""

import msgspec
import pytest
from fake_runs import header, ramp, write_plausible, write_run

from istbench.cluster.profile import load_profile
from istbench.cluster.selection import select_clusters
from istbench.config.defaults import BASELINE
from istbench.errors import UserError
from istbench.report.on_clusters import build_report_on_clusters
from istbench.report.report import build_report


def test_a_workload_can_be_chosen_and_an_unknown_one_is_named(results):
    write_plausible(results, "ddp")
    write_plausible(results, "ddp", workload="toy")
    (table,) = build_report(results, workload="toy").tables
    assert table.context["workload"] == "toy"
    with pytest.raises(UserError, match=r"unknown workload .*'tyo'; did you mean 'toy'"):
        build_report(results, workload="tyo")


def test_a_report_by_another_metric_has_its_finals_and_no_levels_of_the_workloads_own(results):
    first, last = (
        msgspec.structs.replace(event, metrics={"accuracy": low, "top5": high, "loss": 2.0})
        for event, low, high in zip(ramp(100.0), (0.0, 0.75), (0.1, 0.9), strict=True)
    )
    write_run(results, header("ddp", data="real"), [first, last])
    write_run(results, header("ddp", data="real", workload="toy"), ramp(100.0))
    (table,) = build_report(results, metric="top5").tables
    assert table.context["metric"] == "top5"
    (row,) = table.rows
    entries = {column.key: entry for column, entry in zip(table.columns, row, strict=True)}
    assert entries["final_top5"].value["median"] == 0.9
    assert entries["train_s_to_0.9_of_best"].value["level"] == pytest.approx(0.81)
    assert entries["train_s_to_0.9_of_best"].value["median"] == pytest.approx((0.81 - 0.1) / 0.8 * 100)
    assert not any("0.7" in column.key for column in table.columns)


def test_levels_that_are_asked_for_stand_in_place_of_the_workloads_and_the_runs_own(results):
    head = header("ddp")
    head["config"]["target"] = 0.85
    write_run(results, head, ramp(100.0))
    (table,) = build_report(results, levels=(0.6, 0.3)).tables
    times = [column.key for column in table.columns if column.key.startswith("train_s_to")]
    assert times == ["train_s_to_0.3", "train_s_to_0.6"]
    entries = {column.key: entry for column, entry in zip(table.columns, table.rows[0], strict=True)}
    assert entries["train_s_to_0.6"].value["median"] == pytest.approx(0.6 / 0.9 * 100)


def test_a_replay_has_the_levels_that_are_asked_for(results):
    write_plausible(results, "ddp", traced=True)
    (replayed, *_) = build_report_on_clusters(results, select_clusters(["m5.2xlarge"]), levels=(0.5,)).tables
    assert [column.key for column in replayed.columns if "_to_" in column.key] == ["cluster_s_to_0.5"]


@pytest.mark.parametrize("metric", ["loss", "acuracy"])
def test_a_metric_that_is_not_there_or_better_when_lower_is_refused(results, metric):
    event = msgspec.structs.replace(ramp(1.0)[1], metrics={"accuracy": 0.5, "loss": 2.0})
    write_run(results, header("ddp"), [event])
    with pytest.raises(UserError, match=rf"unknown metric in .*results '{metric}'.* Known: accuracy"):
        build_report(results, metric=metric)


def test_an_unknown_baseline_is_named_with_the_methods_there_are(results):
    write_plausible(results, "local_sgd", options="local_steps=8", traced=True)
    write_run(results, header("ist", status="failed"), [])
    message = (
        r"unknown baseline in .*results 'local_sdg'; did you mean 'local_sgd'\? Known: ist, local_sgd, local_sgd"
    )
    with pytest.raises(UserError, match=message) as error:
        build_report(results, baseline="local_sdg")
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(UserError, match=message):
        build_report_on_clusters(results, select_clusters(["m5.2xlarge"]), baseline="local_sdg")


@pytest.mark.parametrize("baseline", ["local_sgd", "local_sgd local_steps=8", "ist", BASELINE])
def test_methods_labels_and_the_default_are_baselines(results, baseline):
    write_plausible(results, "local_sgd", options="local_steps=8")
    write_run(results, header("ist", status="failed"), [])
    assert build_report(results, baseline=baseline).tables[0].context["baseline"] == baseline


def test_a_label_that_only_rows_on_a_cluster_have_is_a_baseline(results):
    for seed, (name, threads) in enumerate([("laptop", 1), ("server", 8)]):
        head = header("ist", cell=f"cell-{seed}", host={"name": name, "cores": 8, "machine": "x86_64"})
        head["config"]["threads"] = threads
        write_run(results, head, ramp(9.0))
    cluster = load_profile("m5.2xlarge")
    assert build_report(results, baseline="ist threads=8", cluster=cluster).problems != ()
    with pytest.raises(UserError, match="unknown baseline .*'ist threads=8'"):
        build_report(results, baseline="ist threads=8")
    with pytest.raises(UserError, match="Known: ist, ist threads=1, ist threads=8"):
        build_report(results, baseline="ist threads=2", cluster=cluster)
