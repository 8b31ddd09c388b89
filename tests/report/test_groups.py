"""Which runs share a table, and which are one row."""

import msgspec
import pytest
from fake_clusters import BARE, sweep_of
from fake_runs import averaging_trace, header, ramp, write_run
from read_tables import column, table_of

from istbench.report.groups import group_runs
from istbench.report.report import build_report_on_clusters
from istbench.results.load import load_runs


@pytest.mark.parametrize(
    "changed",
    [
        {"data": "speech_commands"},
        {"data_source": {"kind": "synthetic", "fingerprint": "cd" * 32, "train": 1000, "test": 100}},
        {"batch_size": 64},
        {"budget": "10 epochs"},
        {"timing_rule": 1},
        {"workload_label": "speech hidden=512"},
        {"host": {"name": "server", "cores": 64, "machine": "x86_64"}},
    ],
)
def test_what_cannot_be_compared_is_never_in_one_table(results, changed):
    write_run(results, header("ddp"), ramp(9.0))
    write_run(results, header("ist", **changed), ramp(9.0))
    groups = group_runs(load_runs(results)[0])
    assert [len(group.contenders) for group in groups] == [1, 1]
    assert len({group.stem for group in groups}) == 2


def test_one_seed_run_twice_is_one_seed_and_the_last_counts(results):
    """`--threads 2` where 2 are usual is another cell with the same settings."""
    for name, ended, value in (("a", "2026-11-02T10:00:00Z", 0.9), ("b", "2026-11-03T10:00:00Z", 0.8)):
        write_run(results, header(cell=f"speech-ddp-n2-s0-{name}", finished_at=ended), ramp(20.0, value))
    ((row,),) = (group.contenders for group in group_runs(load_runs(results)[0]))
    assert (row.seeds, [run.curve.final() for run in row.runs]) == (1, [0.8])


def test_rows_with_the_same_label_but_other_settings_are_told_apart(results):
    for seed, threads in ((0, 1), (0, 2), (1, 2)):
        head = header("ist", seed=seed, cell=f"cell-{seed}-{threads}")
        head["threads"] = threads
        write_run(results, head, ramp(9.0))
    assert [(row[0].text, row[2].value) for row in table_of(results).rows] == [
        ("ist threads=1", 1),
        ("ist threads=2", 2),
    ]


def with_settings(method, *, nodes=2, batches=2, **settings):
    """A header and events of a run whose step processes this many batches of 128."""
    head = header(method, nodes=nodes)
    head["threads"] = settings.pop("threads", 1)
    head["config"] |= settings
    events = [msgspec.structs.replace(event, samples=event.step * batches * 128) for event in ramp(9.0)]
    return head, events


@pytest.mark.parametrize(
    ("name", "one", "other"), [("threads", 1, 4), ("eval_every", 100, 20), ("eval_every", 2, 3)]
)
def test_methods_that_differ_where_all_should_be_equal_are_marked(results, name, one, other):
    write_run(results, *with_settings("ddp", **{name: one}))
    write_run(results, *with_settings("ist", **{name: other}))
    write_run(results, *with_settings("p3", nodes=4, batches=4))
    names = [row[0].text for row in table_of(results).rows]
    assert names == [f"ddp {name}={one}", f"ist {name}={other}", "p3"]
    assert any(f"ist {name}={other} over ddp {name}={one}" in line for line in table_of(results).footer) == (
        name == "threads"
    )


def test_one_interval_in_steps_needs_no_mark(results):
    write_run(results, *with_settings("ddp", eval_every=27))
    write_run(results, *with_settings("dslide", batches=1, eval_every=27))
    assert [row[0].text for row in table_of(results).rows] == ["ddp", "dslide"]


def test_an_epoch_of_one_batch_for_all_nodes_has_more_steps(results):
    write_run(results, *with_settings("ddp", eval_every=50))
    write_run(results, *with_settings("dslide", batches=1, eval_every=99))
    assert [row[0].text for row in table_of(results).rows] == ["ddp", "dslide"]


def test_threads_may_differ_between_numbers_of_nodes(results):
    for nodes in (2, 4):
        head = header("ist", nodes=nodes)
        head["threads"] = 8 // nodes
        write_run(results, head, ramp(9.0))
    assert [row[0].text for row in table_of(results).rows] == ["ist", "ist"]


def test_options_that_all_rows_share_are_said_once(results):
    trace = averaging_trace(2)
    for method, options in (("ddp", "lr=0.3"), ("ist", "lr=0.3 local_steps=8"), ("ist", "lr=0.3 local_steps=4")):
        write_run(results, header(method, options=options), ramp(9.0), trace=trace)
    names = ["ddp", "ist local_steps=4", "ist local_steps=8"]
    report = build_report_on_clusters(results, {"bare": [BARE.with_bandwidth(1e6), BARE]})
    for table in (table_of(results), *report.tables):
        assert "All rows: lr=0.3." in table.footer
    table = table_of(results)
    assert [row[0].text for row in table.rows] == names
    assert table.rows[0][0].value == "ddp lr=0.3"  # for programs, as before
    assert column(table, "speed_up")[names[1], 2].text == "1.00× to 0.8"
    assert {series.label for plot in report.plots for panel in plot.panels for series in panel.series} == set(names)
    assert all(", lr=0.3 throughout, on " in plot.subtitle for plot in report.plots)
    crossings = report.tables[-1]
    assert crossings.rows[0][0].text == "ddp and ist local_steps=4 equal throughout"
    assert crossings.rows[0][0].value["other"] == "ist lr=0.3 local_steps=4"


def test_an_option_that_one_row_lacks_or_a_label_alone_stays(results):
    write_run(results, header("ist", options="lr=0.3", nodes=2), ramp(9.0))
    write_run(results, header("ist", options="lr=0.3", nodes=4), ramp(9.0))
    assert [row[0].text for row in table_of(results).rows] == ["ist lr=0.3"] * 2
    write_run(results, header("ddp"), ramp(9.0))
    assert [row[0].text for row in table_of(results).rows] == ["ddp", "ist lr=0.3", "ist lr=0.3"]
    assert not [line for line in table_of(results).footer if line.startswith("All rows")]


def in_lab(method, bandwidth, *, seed=0, dilation=1.0):
    """A header of a run in a lab whose links have so many Mbit/s."""
    head = header(method, seed=seed, cell=f"{method}-{bandwidth}-{dilation}-s{seed}")
    summary = f"links shaped to {bandwidth} Mbit/s"
    head["host"] = {**head["host"], "lab": summary}
    head["config"]["lab"] = {"summary": summary, "bandwidth": bandwidth * 1e6, "dilation": dilation}
    return head


def test_one_seed_in_several_labs_and_outside_is_as_many_rows_when_replayed(results):
    for head in (
        *(header("ist", seed=seed) for seed in range(3)),
        *(in_lab("ist", 100, seed=seed) for seed in range(2)),
        in_lab("ist", 300),
        in_lab("ist", 300, dilation=2.5),
        header("ddp"),
    ):
        write_run(results, head, ramp(9.0), trace=averaging_trace(2))
    (group,) = sweep_of(results, 8e6).groups
    assert [(contender.label, len(contender.runs)) for contender in group.contenders] == [
        ("ddp", 1),
        ("ist lab=links shaped to 100 Mbit/s", 2),
        ("ist lab=links shaped to 300 Mbit/s", 1),
        ("ist lab=links shaped to 300 Mbit/s, 2.5 times slower", 1),
        ("ist lab=none", 3),
    ]
    assert all(len(contender.seconds(0.8)) == len(contender.runs) for contender in group.contenders)


def test_runs_of_one_lab_do_not_name_it_in_every_row(results):
    for method in ("ddp", "ist"):
        write_run(results, in_lab(method, 100), ramp(9.0))
    assert [row[0].text for row in table_of(results).rows] == ["ddp", "ist"]


def test_seeds_of_data_that_each_seed_splits_share_a_row(results):
    whole = header()["data_source"]
    for seed in range(3):
        split = {**whole, "fingerprint": f"{seed:064}", "train": 900, "test": 100, "before_split": whole}
        write_run(results, header(seed=seed, data_source=split), ramp(9.0))
    (group,) = group_runs(load_runs(results)[0])
    assert [len(contender.runs) for contender in group.contenders] == [3]
