"""Which runs share a table, and which are one row."""

import pytest
from fake_runs import header, ramp, write_run
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
