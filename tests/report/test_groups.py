"""Which runs share a table, and which are one row."""

import pytest
from fake_clusters import sweep_of
from fake_runs import averaging_trace, header, ramp, write_run
from read_tables import table_of

from istbench.report.groups import group_runs
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


def test_rows_with_the_same_label_but_other_settings_are_told_apart(results):
    for seed, threads in ((0, 1), (0, 2), (1, 2)):
        head = header("ist", seed=seed, cell=f"cell-{seed}-{threads}")
        head["config"]["threads"] = threads
        write_run(results, head, ramp(9.0))
    assert [(row[0].text, row[2].value) for row in table_of(results).rows] == [
        ("ist threads=1", 1),
        ("ist threads=2", 2),
    ]


def test_threads_may_differ_between_numbers_of_nodes(results):
    for nodes in (2, 4):
        head = header("ist", nodes=nodes)
        head["config"]["threads"] = 8 // nodes
        write_run(results, head, ramp(9.0))
    assert [row[0].text for row in table_of(results).rows] == ["ist", "ist"]


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
