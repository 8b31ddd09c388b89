"""What stands in the main table of a group."""

import math

import msgspec
import pytest
from fake_clusters import BARE
from fake_runs import averaging_trace, evaluation, header, part_on, ramp, resume, write_plausible, write_run
from read_tables import column, footer, printed, table_of

from istbench.report.phrases import ROUGH_LINE, Caution
from istbench.report.report import build_report_on_clusters
from istbench.report.tables.summary import run_summary
from istbench.results.header import TIMING_RULE
from istbench.results.load import load_run
from istbench.results.store import RunDirectory


def test_rows_are_methods_by_nodes_with_the_baseline_first(results):
    for method in ("ist", "ddp", "local_sgd"):
        for nodes in (4, 2):
            write_plausible(results, method, nodes=nodes)
    rows = [(row[0].text, row[1].value) for row in table_of(results).rows]
    assert rows == [(m, n) for n in (2, 4) for m in ("ddp", "ist", "local_sgd")]
    assert table_of(results, "ist").rows[0][0].text == "ist"


def test_an_entry_is_the_median_with_its_range_and_the_speed_up_is_paired(results):
    for seed, (ours, theirs) in enumerate([(9.0, 18.0), (18.0, 90.0), (27.0, 81.0)]):
        write_run(results, header("ist", seed=seed), ramp(ours))
        write_run(results, header("ddp", seed=seed), ramp(theirs))
    table = table_of(results)
    cell = column(table, "train_s_to_0.8")["ist", 2]
    assert cell.text == "16.0 [8.00–24.0]"
    assert cell.value == {
        "median": 16.0, "low": 8.0, "high": 24.0, "reached": 3, "seeds": 3, "before_first_evaluation": False,
    }  # fmt: skip
    speed_up = column(table, "speed_up")
    assert speed_up["ist", 2].text == "3.00× [2.00–5.00] to 0.8"
    assert speed_up["ist", 2].value["pairs"] == 3
    assert speed_up["ddp", 2].text == "baseline"
    assert column(table, "sent_mb_per_node")["ist", 2].value["median"] == 2.0
    assert "min–max" in footer(table)


def test_a_time_from_before_the_first_evaluation_is_marked_everywhere(results):
    write_run(results, header("ddp"), ramp(18.0))
    assert "--eval-every" not in footer(table_of(results))
    head = header("ist")
    early = [evaluation(0, 0.0, 0.0), evaluation(50, 9.0, 0.75), evaluation(100, 18.0, 0.9)]
    run = write_run(results, head, early)
    table = table_of(results)
    below, above = (column(table, f"train_s_to_{level}")["ist", 2] for level in (0.7, 0.8))
    assert (below.text, below.value["before_first_evaluation"]) == ("~8.40", True)
    assert (above.text, above.value["before_first_evaluation"]) == ("12.0", False)
    assert column(table, "speed_up")["ist", 2].text == "1.33× to 0.8"
    line = ROUGH_LINE
    assert line in table.footer
    summary = run_summary(load_run(run))
    items = {row[0].text: row[1].text for row in summary.rows}
    assert items["train seconds to accuracy 0.7"] == "~8.40 (step 47)"
    assert items["train seconds to accuracy 0.8"] == "12.0 (step 67)"
    assert line in summary.footer


def test_a_speed_up_of_such_a_time_is_marked_too(results):
    write_run(results, header("ddp"), ramp(18.0))
    write_run(results, header("ist"), [evaluation(0, 0.0, 0.0), evaluation(100, 9.0, 0.9)])
    assert column(table_of(results), "speed_up")["ist", 2].text == "~2.00× to 0.8"


def test_one_seed_has_no_interval_and_the_footer_says_so(results):
    write_run(results, header(), ramp(9.0))
    table = table_of(results)
    assert column(table, "train_s_to_0.8")["ddp", 2].text == "8.00"
    assert "no spread is known" in footer(table)


def test_misses_are_told_apart_from_numbers(results):
    for seed, value in enumerate([0.9, 0.75, 0.6]):
        write_run(results, header("ist", seed=seed), ramp(9.0, value))
        write_run(results, header("p3", seed=seed), ramp(9.0, 0.3))
    table = table_of(results)
    lower, higher = column(table, "train_s_to_0.7"), column(table, "train_s_to_0.8")
    assert lower["ist", 2].text == "8.40 [7.00–∞] 2/3"
    assert lower["ist", 2].value["high"] is None
    assert higher["ist", 2].text == "> 9.00 1/3"
    assert higher["ist", 2].value["median"] is None
    assert higher["p3", 2].text == "not reached in 9.00"
    assert higher["p3", 2].value["reached"] == 0


def test_a_speed_up_goes_to_the_highest_target_that_both_reached(results):
    write_run(results, header("ist"), ramp(7.0, 0.75))
    write_run(results, header("ddp"), ramp(18.0, 0.9))
    cell = column(table_of(results), "speed_up")["ist", 2]
    assert cell.value["to"] == 0.7
    assert cell.value["ratio"] == pytest.approx(14 / (7 * 0.7 / 0.75))


def test_no_number_where_the_baseline_never_got_there(results):
    write_run(results, header("ist"), ramp(9.0))
    write_run(results, header("ddp"), ramp(9.0, 0.5))
    write_run(results, header("p3"), ramp(9.0, 0.5))
    cells = column(table_of(results), "speed_up")
    assert cells["ist", 2].text == "> budget to 0.8"
    assert cells["ist", 2].value["ratio"] is None
    assert cells["ist", 2].value["baseline_missed"]
    assert cells["p3", 2].text == "–"


def test_over_budget_says_how_many_seeds_of_the_baseline_reached_it(results):
    for seed, value in enumerate([0.9, 0.5]):
        write_run(results, header("ist", seed=seed), ramp(9.0))
        write_run(results, header("ddp", seed=seed), ramp(9.0, value))
    cell = column(table_of(results), "speed_up")["ist", 2]
    assert cell.text == "> budget to 0.8 (ddp reached it with 1 of 2 seeds)"
    assert (cell.value["baseline_missed"], cell.value["baseline_reached"], cell.value["pairs"]) == (True, 1, 2)


def test_targets_that_an_evaluation_cannot_tell_apart_are_pointed_out(results):
    levels = [0.5, 0.7, 0.72, 0.74]  # a standard error on 1,000 samples is .0145
    source = {"kind": "synthetic", "fingerprint": "ab" * 32, "train": 1000, "test": 1000}
    for method, seconds in (("ddp", 18.0), ("ist", 9.0)):
        trace = averaging_trace(2)
        write_run(results, header(method, targets=levels, data_source=source), ramp(seconds), trace=trace)
    line = (
        "Careful: targets closer than two standard errors: 0.7, 0.72 and 0.74. An evaluation has 1,000 samples, so "
        "its standard error is up to 0.014. Differences between times to these targets may be chance; compare the "
        "seconds to the end or the samples per second."
    )
    table = table_of(results)
    assert line in table.footer
    ends = column(table, "train_s_to_the_end")
    assert [ends[method, 2].text for method in ("ddp", "ist")] == ["18.0", "9.00"]
    clusters = {"bare": [BARE.with_bandwidth(1e6), BARE]}
    main, _, crossings = build_report_on_clusters(results, clusters).tables
    assert line in main.footer
    assert line in crossings.footer


@pytest.mark.parametrize(
    "changed",
    [
        {"targets": [0.6, 0.7]},
        {"data_source": {"kind": "synthetic", "fingerprint": "ab" * 32, "train": 1000, "test": 0}},
    ],
)
def test_targets_far_apart_or_of_unknown_error_are_not(results, changed):
    source = {"kind": "synthetic", "fingerprint": "ab" * 32, "train": 1000, "test": 1000}
    write_run(results, header(**{"targets": [0.7, 0.701], "data_source": source, **changed}), ramp(9.0))
    table = table_of(results)
    assert "standard error" not in footer(table)
    assert "train_s_to_the_end" not in [column.key for column in table.columns]


def test_one_batch_for_all_nodes_is_not_one_a_node(results):
    def one_batch(events):
        return [msgspec.structs.replace(event, samples=event.step * 128) for event in events]

    write_run(results, header("dslide"), one_batch(ramp(9.0)))
    assert "for every row, one batch of 128 for all nodes.\n" in footer(table_of(results))
    write_run(results, header("ddp"), ramp(9.0))
    write_run(results, header("model_parallel"), one_batch(ramp(9.0)))
    said = "batch size 128 per node; one batch of 128 for all nodes with dslide and model_parallel."
    assert said in footer(table_of(results))


def test_the_samples_of_an_optimizer_step_are_said_where_gradients_accumulate(results):
    for nodes in (2, 4):
        write_run(results, header("ddp", nodes=nodes), ramp(9.0))
        write_run(results, header("ddp", options="often=4", nodes=nodes, minibatches_a_step=4), ramp(9.0))
    said = (
        "batch size 128 per node; 1,024 samples an optimizer step with 4 minibatches a node on 2 nodes; 2,048 "
        "samples an optimizer step with 4 minibatches a node on 4 nodes."
    )
    assert said in footer(table_of(results))


def test_without_a_baseline_the_footer_says_why_there_is_no_speed_up(results):
    write_run(results, header("ist", nodes=2), ramp(9.0))
    assert "Speed-up: none, ddp has no finished row; `istbench report --baseline` names another row." in footer(
        table_of(results)
    )
    write_run(results, header("ist", nodes=4), ramp(9.0))
    write_run(results, header("ddp", nodes=4), ramp(9.0))
    table = table_of(results)
    assert "Speed-up: none on 2 nodes, ddp has no row there." in footer(table)
    assert column(table, "speed_up")["ist", 2].text == "–"


def test_a_baseline_can_be_one_of_several_labels(results):
    write_run(results, header("ddp", options="bucket_mb=25"), ramp(18.0))
    write_run(results, header("ist"), ramp(9.0))
    assert column(table_of(results), "speed_up")["ist", 2].value["ratio"] == 2.0
    write_run(results, header("ddp", options="bucket_mb=1"), ramp(36.0))
    assert column(table_of(results), "speed_up")["ist", 2].text == "2.00× to 0.8 over ddp bucket_mb=25"
    assert column(table_of(results, "ddp bucket_mb=1"), "speed_up")["ist", 2].value["ratio"] == 4.0


def test_unfinished_runs_are_counted_and_named_but_do_not_count(results):
    write_run(results, header("ddp"), ramp(9.0))
    write_run(results, header("ddp", seed=1, status="failed", error="a worker died"), ramp(1.0))
    write_run(results, header("ist", status="running"), ramp(1.0))
    table = table_of(results)
    assert [(row[0].text, row[2].value) for row in table.rows] == [("ddp", 1)]
    named = "ddp on 2 nodes seed 1 (failed) and ist on 2 nodes seed 0 (unfinished)"
    assert f"Not counted: 2 of 3 runs: {named}." in footer(table)


def test_only_unfinished_runs_make_a_table_without_rows(results):
    write_run(results, header("ddp", status="interrupted"), [])
    table = table_of(results)
    assert table.rows == ()
    assert "Not counted: 1 of 1 runs" in footer(table)


def test_a_diverged_run_is_the_worst_not_left_out(results):
    for seed, value in enumerate([math.nan, math.nan, 0.9]):
        write_run(results, header("ist", seed=seed), ramp(9.0, value))
    table = table_of(results)
    assert column(table, "final_accuracy")["ist", 2].text == "diverged [diverged–0.900]"
    assert column(table, "final_accuracy")["ist", 2].value["median"] is None
    assert column(table, "train_s_to_0.8")["ist", 2].text == "> 9.00 1/3"


def test_a_loss_that_became_no_number_counts_beside_other_seeds(results):
    write_run(results, header("ist"), ramp(9.0))
    for seed in (1, 2):
        write_run(
            results, header("ist", seed=seed, status="failed", error="the loss became nan at step 60"), ramp(9.0)
        )
    table = table_of(results)
    assert column(table, "seeds")["ist", 2].value == 3
    assert column(table, "final_accuracy")["ist", 2].text == "diverged [diverged–0.900]"
    assert column(table, "train_s_to_0.8")["ist", 2].text == "> 9.00 1/3"
    named = "ist on 2 nodes seed 1 and ist on 2 nodes seed 2"
    assert f"Diverged: 2 of 3 runs: {named}. Each counts as a miss" in footer(table)
    assert "Not counted" not in footer(table)


def test_a_row_of_which_every_seed_diverged_is_named(results):
    write_run(results, header("ddp"), ramp(9.0))
    write_run(results, header("ist", status="failed", error="the loss became nan at step 60"), ramp(9.0))
    table = table_of(results)
    assert [row[0].text for row in table.rows] == ["ddp"]
    assert "Not counted: 1 of 2 runs: ist on 2 nodes seed 0 (diverged, with no other seed)." in footer(table)


def test_rows_of_one_seed_among_others_are_named(results):
    for method, seeds in (("ddp", 2), ("ist", 1)):
        for seed in range(seeds):
            write_run(results, header(method, seed=seed), ramp(9.0))
    assert "Seeds: one of ist on 2 nodes, so no spread of it is known." in footer(table_of(results))


def test_synthetic_data_clock_rule_and_budget_are_said(results):
    write_run(results, header(nodes=16), ramp(9.0))
    table = table_of(results)
    assert "SYNTHETIC" in table.title
    assert "train seconds" in table.title
    assert table.context["timing_rule"] == TIMING_RULE
    for expected in (
        "SYNTHETIC",
        "Clock: train seconds on laptop",
        "30 epochs",
        "default settings",
        "More nodes than cores",
    ):
        assert expected in footer(table)
    assert table.context["clock"] == "train_s"


def test_a_table_without_trials_says_that_nothing_is_tuned(results):
    write_run(results, header("ddp"), ramp(9.0))
    assert "Tuning: none; each method has the workload's default settings" in footer(table_of(results))


def tuned_run(results, method, trials, *, seconds=9.0, **options):
    head = header(method, **options)
    if trials:
        head["config"]["tuned"] = trials
    write_run(results, head, ramp(seconds))


def test_a_table_of_winners_of_equal_trials_is_tuned(results):
    tuned_run(results, "ddp", 20, options="lr=0.3")
    tuned_run(results, "ist", 20, options="lr=0.1")
    said = footer(table_of(results))
    assert "Tuned: 20 trials each, by `istbench tune`, judged on samples held out of the training data." in said
    assert "Tuning: none" not in said
    assert "unequal" not in said


def test_unequal_trials_are_a_warning_that_names_the_rows(results):
    tuned_run(results, "ddp", None)
    tuned_run(results, "ist", 20)
    lines = table_of(results).footer
    (line,) = [line for line in lines if line.startswith("Tuned unequally")]
    assert isinstance(line, Caution)
    assert "Trials: none for ddp on 2 nodes; 20 for ist on 2 nodes." in line
    assert "The speed-ups of ist on 2 nodes also compare the tuning." in line


def test_many_rows_with_the_most_trials_are_not_named_one_by_one(results):
    tuned_run(results, "ddp", None)
    tuned_run(results, "local_sgd", 5)
    for rate in ("0.1", "0.2", "0.3"):
        tuned_run(results, "ist", 20, options=f"lr={rate}")
    said = footer(table_of(results))
    assert "Trials: none for ddp on 2 nodes; 5 for local_sgd on 2 nodes; 20 for every other row." in said


def test_tuned_and_untuned_rows_are_paired_among_themselves(results):
    for method, seconds in (("ddp", 40.0), ("ist", 10.0)):
        tuned_run(results, method, None, seconds=seconds)
        tuned_run(results, method, 20, seconds=seconds / 4, options="lr=0.3")
    table = table_of(results)
    cells = {row[0].text: row for row in table.rows}
    place = [own.key for own in table.columns].index("speed_up")
    for name, over in (("ist", "ddp"), ("ist lr=0.3", "ddp lr=0.3")):
        assert cells[name][place].value["ratio"] == pytest.approx(4)
        assert cells[name][place].text.endswith(f"over {over}")
    assert "Each speed-up is over a row of as many trials." in footer(table)


def test_a_control_has_the_options_of_a_tuned_row(results):
    tuned_run(results, "ddp", 20)
    tuned_run(results, "diloco", 20, control_nodes=1)
    tuned_run(results, "diloco", None, nodes=1, control_nodes=1)
    assert "Tuned: 20 trials each" in footer(table_of(results))


def test_a_row_is_as_tuned_as_its_least_tuned_seed(results):
    tuned_run(results, "ddp", 20)
    tuned_run(results, "ddp", 10, seed=1)
    assert "Tuned: 10 trials each" in footer(table_of(results))


def test_several_hosts_have_the_cores_of_all_of_them(results):
    host = {"name": "a, b, c", "cores": 6, "count": 3, "machine": "x86_64"}
    write_run(results, header(nodes=3, host=host), ramp(9.0))
    table = table_of(results)
    assert "on a, b, c (6 cores together, cpu)" in table.title
    assert "More nodes than cores" not in footer(table)
    write_run(results, header("ist", nodes=7, host=host), ramp(9.0))
    assert "nodes took turns on 6 cores" in footer(table_of(results))


def test_several_versions_in_one_table_are_pointed_out(results):
    write_run(results, header(), ramp(9.0))
    assert "Careful" not in footer(table_of(results))
    write_run(results, header("ist", versions={"istbench": "0.2.0", "torch": "2.11.0"}), ramp(9.0))
    assert "several versions of istbench: 0.1.0, 0.2.0" in footer(table_of(results))


def test_runs_that_went_on_elsewhere_are_pointed_out_on_every_clock(results):
    for seed in range(2):
        directory = write_run(results, header("ist", seed=seed), ramp(9.0), trace=averaging_trace(2))
        directory.append(resume(50, part=part_on("server", cores=64)))
        directory.append(resume(70, part=part_on("laptop", cores=8)))
        directory.append(ramp(9.0)[-1])
    write_run(results, header("ddp"), ramp(9.0), trace=averaging_trace(2))
    said = (
        "Careful: 2 of 3 runs consist of different parts, for example ist on 2 nodes seed 0, resumed on another "
        "machine: laptop (8 cores), from step 50 on server (64 cores), from step 70 on laptop (8 cores)."
    )
    assert said in table_of(results).footer
    assert said in build_report_on_clusters(results, {"bare": [BARE]}).tables[0].footer


def test_memory_has_a_column_only_where_it_was_measured(results):
    write_run(results, header(), ramp(9.0), memory=None)
    assert "peak_memory_mb_per_node" not in [column.key for column in table_of(results).columns]
    write_run(results, header("ist"), ramp(9.0), memory=3_000_000)
    cells = column(table_of(results), "peak_memory_mb_per_node")
    assert (cells["ddp", 2].value, cells["ist", 2].text) == (None, "3.00")


def test_a_miss_costs_no_number_of_dollars(results):
    trace = averaging_trace(2)
    write_run(results, header(), ramp(9.0, 0.5), trace=trace)
    table = build_report_on_clusters(results, {"bare": [BARE]}).tables[0]
    value = column(table, "cluster_s_to_0.8")["ddp", 2].value
    assert (value["median"], value["dollars"]) == (None, None)


RECORDED = {
    "kind": "speech_commands", "fingerprint": "ab" * 32, "train": 3_276, "test": 819,
    "name": "speech_commands", "unit": "clips", "whole": 105_829,
}  # fmt: skip


def test_every_table_and_every_form_says_how_much_of_which_data_it_saw(results):
    seen = "speech_commands, 4,095 of 105,829 clips: a subset"
    trace = averaging_trace(2)
    for method in ("ddp", "ist"):
        write_run(results, header(method, data="speech_commands", data_source=RECORDED), ramp(9.0), trace=trace)
    report = build_report_on_clusters(results, {"bare": [BARE.with_bandwidth(1e6), BARE]})
    assert len(report.tables) == 3  # comparison, spending, crossings
    for table in report.tables:
        assert f"Data: {seen}, fingerprint abababababab." in table.footer
        assert table.context["data_seen"] == seen
    assert all(seen in plot.title for plot in report.plots)
    for output_format, times in (("table", 1), ("markdown", 4), ("csv", 2), ("json", 4)):
        text = " ".join(printed(report, output_format)[0].split()).replace("\\", "")
        assert text.count(seen) >= times
    summary = run_summary(load_run(RunDirectory(results / "runs" / "speech-ddp-n2-s0")))
    assert f"Data: {seen}, fingerprint abababababab." in summary.footer
