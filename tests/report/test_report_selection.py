"""The names that a report is asked for by."""

import msgspec
import pytest
from fake_runs import averaging_trace, header, ramp, write_plausible, write_run

from istbench.base.errors import UserError
from istbench.base.options.defaults import BASELINE
from istbench.cluster.profile import load_profile, select_clusters
from istbench.report.report import build_report, build_report_on_clusters
from istbench.report.tables.summary import run_summary
from istbench.results.load import load_run


def test_a_workload_can_be_chosen_and_an_unknown_one_is_named(results):
    write_plausible(results, "ddp")
    write_plausible(results, "ddp", workload="toy")
    (table,) = build_report(results, workload="toy").tables
    assert table.context["workload"] == "toy"
    with pytest.raises(UserError, match=r"unknown workload 'tyo' in .*; did you mean 'toy'"):
        build_report(results, workload="tyo")


def test_a_report_by_another_metric_has_its_finals_and_no_levels_of_the_workloads_own(results):
    first, last = (
        msgspec.structs.replace(event, metrics={"accuracy": low, "top5": high, "loss": 2.0})
        for event, low, high in zip((ramp(100.0)[0], ramp(100.0)[-1]), (0.0, 0.75), (0.1, 0.9), strict=True)
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


def test_a_metric_that_is_not_there_is_named_with_those_there_are(results):
    event = msgspec.structs.replace(ramp(1.0)[-1], metrics={"accuracy": 0.5, "loss": 2.0})
    write_run(results, header("ddp"), [event])
    with pytest.raises(UserError, match=r"unknown metric 'acuracy' in .*results.* Known: accuracy, loss$"):
        build_report(results, metric="acuracy")


def write_with(results, name, method="ddp", values=(90.0, 12.0), **changed):
    """A run whose evaluations have another metric `name` beside a rising accuracy."""
    events = [
        msgspec.structs.replace(event, metrics={**event.metrics, name: value})
        for event, value in zip((ramp(9.0)[0], ramp(9.0)[-1]), values, strict=True)
    ]
    return write_run(results, header(method, **changed), events, trace=averaging_trace(2))


def direction_in(report):
    """The direction of the report's metric, and the line that says it."""
    table = report.tables[0]
    return table.context["lower_is_better"], next(line for line in table.footer if line.startswith("Metric: "))


@pytest.mark.parametrize("name", ["perplexity", "loss", "top5_error"])
def test_a_metric_that_falls_by_its_name_has_times_to_lower_levels(results, name):
    write_with(results, name, data="real")
    said = f"Metric: {name}, lower is better, by its name."
    for report in (
        build_report(results, metric=name),
        build_report_on_clusters(results, select_clusters(["m5.2xlarge"]), metric=name),
    ):
        assert direction_in(report) == (True, said)
        (time,) = (column for column in report.tables[0].columns if "_to_1.1_of_best" in column.key)
        assert time.title == "seconds to 110 % of best (13.20)"
    (table,) = build_report(results, metric=name, levels=(20.0, 40.0)).tables
    times = {column.key: entry for column, entry in zip(table.columns, table.rows[0], strict=True)}
    assert times["train_s_to_20"].value["median"] == pytest.approx(9 * 70 / 78)
    assert [key for key in times if key.startswith("train_s_to")] == ["train_s_to_40", "train_s_to_20"]


def test_a_metric_of_another_name_has_the_direction_of_the_median_run(results):
    for seed, values in enumerate([(90.0, 12.0), (80.0, 20.0), (70.0, 75.0)]):
        write_with(results, "mean_rank", seed=seed, values=values)
    said = "Metric: mean_rank, lower is better, by its curves beside those of the workload's own metric."
    assert direction_in(build_report(results, metric="mean_rank")) == (True, said)


def test_beside_a_loss_a_metric_that_falls_with_it_falls(results):
    own = {"metric": "perplexity", "lower_is_better": True}
    for name, falls in (("mean_rank", True), ("votes", False)):
        values = [{"perplexity": 9.0, name: 1.0 + falls}, {"perplexity": 3.0, name: 2.0 - falls}]
        events = [
            msgspec.structs.replace(event, metrics=metrics)
            for event, metrics in zip((ramp(9.0)[0], ramp(9.0)[-1]), values, strict=True)
        ]
        write_run(results, header(workload=name, **own), events)
        assert direction_in(build_report(results, metric=name))[0] is falls


def test_a_name_that_tells_is_believed_before_a_curve(results):
    write_with(results, "top5", values=(0.9, 0.1))
    assert direction_in(build_report(results, metric="top5")) == (
        False,
        "Metric: top5, higher is better, by its name.",
    )


def test_a_direction_that_nothing_tells_is_an_assumption_and_says_so(results):
    write_with(results, "votes", values=(1.0, 1.0))
    said = "Metric: votes, higher is better, which is an assumption."
    assert direction_in(build_report(results, metric="votes")) == (False, said)


def test_a_direction_that_a_run_recorded_comes_first(results):
    write_with(results, "mean_rank", values=(1.0, 9.0), metric="mean_rank", lower_is_better=True, targets=[2.0])
    write_with(results, "mean_rank", values=(1.0, 9.0), workload="other", targets=[])
    own, other = build_report(results, metric="mean_rank").tables
    assert own.context["workload"] == "other"
    assert [table.context["lower_is_better"] for table in (own, other)] == [True, True]
    assert [column.key for column in other.columns if "_to_" in column.key] == ["train_s_to_2"]


def test_a_workload_whose_own_metric_falls_is_reported_with_the_others(results):
    write_with(results, "perplexity", workload="mine", metric="perplexity", targets=[20.0])
    write_plausible(results, "ddp")
    report = build_report(results)
    assert [(table.context["workload"], table.context["metric"]) for table in report.tables] == [
        ("mine", "perplexity"),
        ("speech", "accuracy"),
    ]
    assert report.problems == ()
    assert len(build_report(results, metric="accuracy").tables) == 2


def test_a_summary_by_a_metric_that_falls_has_its_best_and_its_times(results):
    run = write_with(results, "perplexity", metric="perplexity", lower_is_better=True, targets=[20.0, 5.0])
    table = run_summary(load_run(run))
    items = {row[0].text: row[1].text for row in table.rows}
    assert (items["final perplexity"], items["best perplexity"]) == ("12.00", "12.00")
    assert items["train seconds to perplexity 20"] == "~8.08 (step 90)"
    assert items["train seconds to perplexity 5"] == "not reached"
    assert "Metric: perplexity, lower is better." in table.footer


def test_an_unknown_baseline_is_named_with_the_methods_there_are(results):
    write_plausible(results, "local_sgd", options="local_steps=8", traced=True)
    write_run(results, header("ist", status="failed"), [])
    message = (
        r"unknown baseline 'local_sdg' in .*results; did you mean 'local_sgd'\? Known: ist, local_sgd, local_sgd"
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
        head["threads"] = threads
        write_run(results, head, ramp(9.0))
    cluster = load_profile("m5.2xlarge")
    assert build_report(results, baseline="ist threads=8", cluster=cluster).problems != ()
    assert build_report(results, baseline="ist threads=8").tables  # a row has these settings, whatever its label
    with pytest.raises(UserError, match="Known: ist, ist threads=1, ist threads=8"):
        build_report(results, baseline="ist threads=2", cluster=cluster)
