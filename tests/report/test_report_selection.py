"""The names that a report is asked for by."""

import msgspec
import pytest
from fake_runs import averaging_trace, header, ramp, write_plausible, write_run

from istbench.cluster.profile import load_profile, select_clusters
from istbench.config.defaults import BASELINE
from istbench.errors import UserError
from istbench.report.on_clusters import build_report_on_clusters
from istbench.report.report import build_report
from istbench.report.tables.summary import run_summary
from istbench.results.load import load_run


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


def test_a_metric_that_is_not_there_is_named_with_those_that_rise(results):
    event = msgspec.structs.replace(ramp(1.0)[-1], metrics={"accuracy": 0.5, "loss": 2.0})
    write_run(results, header("ddp"), [event])
    with pytest.raises(UserError, match=r"unknown metric in .*results 'acuracy'.* Known: accuracy$"):
        build_report(results, metric="acuracy")


def write_falling(results, name, method="ddp", values=(90.0, 12.0), **changed):
    """A run whose evaluations have another metric `name` beside a rising accuracy."""
    events = [
        msgspec.structs.replace(event, metrics={**event.metrics, name: value})
        for event, value in zip((ramp(9.0)[0], ramp(9.0)[-1]), values, strict=True)
    ]
    return write_run(results, header(method, **changed), events, trace=averaging_trace(2))


@pytest.mark.parametrize("name", ["perplexity", "loss", "top5_error"])
def test_a_metric_that_falls_by_its_name_is_refused_in_one_line(results, name):
    write_falling(results, name)
    message = rf"--metric '{name}': it falls as a model gets better, .* name one that rises: accuracy$"
    for refused in (
        lambda: build_report(results, metric=name),
        lambda: build_report_on_clusters(results, select_clusters(["m5.2xlarge"]), metric=name),
    ):
        with pytest.raises(UserError, match=message) as caught:
            refused()
        assert "\n" not in str(caught.value)


def test_a_metric_that_falls_in_the_median_run_is_refused_whatever_its_name(results):
    for seed, values in enumerate([(90.0, 12.0), (80.0, 20.0), (70.0, 75.0)]):
        write_falling(results, "mean_rank", seed=seed, values=values)
    with pytest.raises(UserError, match="--metric 'mean_rank': it falls where accuracy rises"):
        build_report(results, metric="mean_rank")


def test_a_metric_that_fell_in_one_run_of_three_is_reported_on(results):
    for seed, values in enumerate([(0.1, 0.6), (0.1, 0.5), (0.2, 0.1)]):
        write_falling(results, "top5", seed=seed, values=values)
    assert build_report(results, metric="top5").tables[0].context["metric"] == "top5"


def test_a_workload_whose_own_metric_falls_is_left_out_with_a_line(results):
    write_falling(results, "perplexity", workload="mine", metric="perplexity", targets=[])
    with pytest.raises(UserError, match="mine: its metric 'perplexity' falls .* name one with --metric"):
        build_report(results)
    write_plausible(results, "ddp")
    report = build_report(results)
    assert [table.context["workload"] for table in report.tables] == ["speech"]
    assert report.problems == (
        "mine: its metric 'perplexity' falls as a model gets better, and reports take higher values as better; let "
        "the workload name a metric that rises, or name one with --metric",
    )
    assert len(build_report(results, metric="accuracy").tables) == 2


def test_a_summary_by_a_metric_that_falls_has_no_best_and_no_times(results):
    run = write_falling(results, "perplexity", metric="perplexity", targets=[0.7])
    table = run_summary(load_run(run))
    items = [row[0].text for row in table.rows]
    assert items[:3] == ["status", "final perplexity", "train seconds"]
    assert not [item for item in items if "seconds to" in item]
    assert "perplexity falls as a model gets better" in table.footer[-1]


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
    assert build_report(results, baseline="ist threads=8").tables  # a row has these settings, whatever its label
    with pytest.raises(UserError, match="Known: ist, ist threads=1, ist threads=8"):
        build_report(results, baseline="ist threads=2", cluster=cluster)
