"""Controls in a table: rows at a subnet's width, accumulation, and one node."""

import re

import msgspec
import pytest
from fake_clusters import sweep_of
from fake_runs import averaging_trace, header, ramp, write_run
from read_tables import column, footer, group_of, table_of, tables_of

from istbench.report.answer import answer
from istbench.report.groups import group_runs
from istbench.report.map import winner_map
from istbench.report.tables.crossings import crossings
from istbench.results.load import load_runs

SUBNET = "hidden 2,048: a subnet's width"


def run(
    results, method, seconds, *, hidden=4096, options="", nodes=2, seed=0, trace=None, defaults=None, **changed
):
    head = header(method, nodes=nodes, seed=seed, options=options, **changed)
    own = dict(pair.split("=") for pair in options.split())
    head["config"]["workload_options"] = {"layers": 2, "hidden": hidden}
    head["config"]["method_options"] |= {**(defaults or {}), **{name: int(value) for name, value in own.items()}}
    if hidden != 4096:
        head["workload_label"], head["cell"] = f"speech hidden={hidden}", f"{head['cell']}-{hidden}"
    if method == "ist":
        head["narrowed"] = {"hidden": hidden // nodes}
    head["minibatches_a_step"] = head["config"]["method_options"].get("accumulate", 1)
    head["accumulation"] = 20 if method == "local_sgd" else 1
    write_run(results, head, ramp(seconds), trace=trace)


@pytest.fixture
def wide(results):
    """Three methods with two seeds. A seed doubles the seconds of every method."""
    for seed in (0, 1):
        for method, seconds in (("ddp", 16.0), ("local_sgd", 12.0), ("ist", 4.0)):
            run(results, method, seconds * (1 + seed), seed=seed)
    return results


def test_rows_at_a_subnets_width_stand_in_the_table_of_the_wide_model(wide):
    for seed in (0, 1):
        for method in ("ddp", "local_sgd"):
            run(wide, method, 8.0 * (1 + seed), hidden=2048, seed=seed)
    table = table_of(wide)
    named = {row[0].value: row[0].text for row in table.rows}
    assert named == {
        "ddp": "ddp",
        "ddp hidden=2048": f"ddp, {SUBNET}",
        "ist": "ist",
        "local_sgd": "local_sgd",
        "local_sgd hidden=2048": f"local_sgd, {SUBNET}",
    }
    speed_ups = column(table, "speed_up")
    assert {row: entry.text for (row, _), entry in speed_ups.items()} == {
        "ddp": "baseline",
        f"ddp, {SUBNET}": "2.00× [2.00–2.00] to 0.8",
        "ist": "4.00× [4.00–4.00] to 0.8",
        "local_sgd": "1.33× [1.33–1.33] to 0.8",
        f"local_sgd, {SUBNET}": "2.00× [2.00–2.00] to 0.8",
    }
    assert speed_ups[f"ddp, {SUBNET}", 2].value["over"] == "ddp"
    assert speed_ups[f"ddp, {SUBNET}", 2].value["pairs"] == 2
    assert f"Controls: ddp, {SUBNET} on 2 nodes and local_sgd, {SUBNET} on 2 nodes: the whole network" in footer(
        table
    )


def test_a_row_at_a_subnets_width_is_a_baseline_by_its_label_only(wide):
    run(wide, "ddp", 8.0, hidden=2048)
    assert column(table_of(wide, "ddp hidden=2048"), "speed_up")["ddp", 2].text.startswith("0.500×")
    assert column(table_of(wide, "ddp lr=0.1"), "speed_up")[f"ddp, {SUBNET}", 2].text.startswith("2.00×")


def test_other_narrow_runs_stay_in_a_table_of_their_own(wide):
    run(wide, "ddp", 8.0, hidden=2048)
    run(wide, "ist", 2.0, hidden=2048)
    run(wide, "ddp", 8.0, hidden=2048, nodes=4)  # no subnet of 4 nodes is that wide
    run(wide, "ddp", 8.0, hidden=1024)  # a subnet of the narrow ist
    run(wide, "ddp", 8.0, hidden=512)
    run(wide, "ddp", 7.0, hidden=2048, options="lr=3")  # the wide table has no such row
    run(wide, "ddp", 7.0, hidden=2048, seed=3, budget="2 epochs")
    groups = {
        (g.workload_label, g.budget): [row.label for row in g.contenders] for g in group_runs(load_runs(wide)[0])
    }
    assert groups == {
        ("speech", "30 epochs"): ["ddp", "ddp hidden=2048", "ist", "local_sgd"],
        ("speech hidden=512", "30 epochs"): ["ddp"],
        ("speech hidden=2048", "2 epochs"): ["ddp"],
        ("speech hidden=2048", "30 epochs"): ["ddp", "ddp hidden=1024", "ddp lr=3", "ist", "ddp"],
    }


def test_a_table_of_one_width_is_as_before(wide):
    text = footer(table_of(wide))
    assert "Control" not in text
    assert "subnet's width" not in text


def answered(results):
    group = group_of(results)
    return answer(group, group.targets[-1])


def test_a_control_whose_range_overlaps_is_too_close_to_call(wide):
    before = answered(wide).verdict
    for seed, seconds in enumerate((1.0, 20.0)):
        run(wide, "local_sgd", seconds, hidden=2048, seed=seed)
    (line,) = set(answered(wide).verdict) - set(before)
    assert line.startswith(f"A control is too close to call: local_sgd, {SUBNET} on 2 nodes takes ")
    assert line.endswith("so to this target the wide network may not be worth its cost.")


def test_no_control_is_the_answer_but_a_sentence_names_a_sooner_one(wide):
    before = answered(wide)
    for seed in (0, 1):
        run(wide, "ddp", 20.0, hidden=2048, seed=seed)
    assert answered(wide) == before
    run(wide, "local_sgd", 1.0, hidden=2048)
    run(wide, "diloco", 30.0, control_nodes=1)
    run(wide, "diloco", 2.0, nodes=1, control_nodes=1)
    found = answered(wide)
    assert found.verdict[0].startswith(
        "ist on 2 nodes is the first of ddp, diloco, ist and local_sgd to reach accuracy 0.8"
    )
    assert found.details == before.details
    assert found.lead[1:] == (
        f"A control is sooner: local_sgd, {SUBNET} on 2 nodes takes 0.889 s, so to this target the wide network is "
        "not worth its cost.",
        "A control is sooner: diloco on 1 node takes 1.78 s, so to this target other nodes do not help.",
    )


def test_a_run_on_one_node_is_a_control_only_beside_more_nodes(results):
    for method, seconds in (("ddp", 9.0), ("diloco", 3.0)):
        run(results, method, seconds, nodes=1, control_nodes=1)
    assert (
        answered(results)
        .verdict[0]
        .startswith("diloco on 1 node is the first of ddp and diloco to reach accuracy 0.8")
    )
    assert "Control" not in footer(table_of(results)).replace("Control:", "")


def test_maps_and_crossings_leave_out_controls(results):
    for method, compute in (("ddp", 0.03), ("local_sgd", 0.02), ("diloco", 0.04)):
        trace = averaging_trace(2, compute=(compute,))
        run(results, method, 9.0, trace=trace, control_nodes=1 if method == "diloco" else None)
    run(results, "ist", 9.0, trace=averaging_trace(2, compute=(0.01,)))
    run(results, "ddp", 9.0, hidden=2048, trace=averaging_trace(2, compute=(0.001,), size=1))
    run(results, "diloco", 9.0, nodes=1, control_nodes=1, trace=averaging_trace(1, compute=(0.001,)))
    sweep = sweep_of(results, 8e6, 8e9)
    assert len(sweep.groups[0].contenders) == 6
    found = winner_map([sweep], "nodes", "bare")
    assert found.rows == ("2",)
    assert [tile.leaders[0] for tile in found.tiles[0]] == ["ist", "ist"]
    assert not [name for tile in found.tiles[0] for name in tile.leaders if SUBNET in name]
    assert {name for crossing in crossings(sweep) for name in crossing.pair} == {
        "ddp",
        "diloco",
        "ist",
        "local_sgd",
    }


def test_accumulation_is_no_baseline_and_says_its_purpose(wide):
    run(wide, "ddp", 10.0, options="accumulate=20")
    table = table_of(wide)
    speed_ups = {row: entry.text for (row, _), entry in column(table, "speed_up").items()}
    assert speed_ups["ddp accumulate=20"] == "1.60× to 0.8"
    assert speed_ups["ist"].startswith("4.00×")
    purpose = "takes one optimizer step a round, for about the bytes of local_sgd"
    assert f"Controls: ddp accumulate=20 on 2 nodes {purpose}" in footer(table)
    run(wide, "ddp", 10.0, options="accumulate=5")
    assert "accumulate=5 on 2 nodes takes" not in footer(table_of(wide))
    named = column(table_of(wide, "ddp accumulate=20"), "speed_up")
    assert named["ddp", 2].text.startswith("0.625×")


def test_a_row_of_fewer_bytes_is_no_control_of_accumulation(wide):
    run(wide, "ddp", 10.0, options="accumulate=20")
    head = header("ddp", options="accumulate=20 compress=bf16", minibatches_a_step=20, compresses=True)
    head["config"]["workload_options"] = {"layers": 2, "hidden": 4096}
    events = [msgspec.structs.replace(own, bytes_sent_per_node=own.bytes_sent_per_node // 2) for own in ramp(9.0)]
    write_run(wide, head, events)
    text = footer(table_of(wide))
    assert "Controls: ddp accumulate=20 on 2 nodes takes" in text
    assert "compress=bf16 on 2 nodes takes" not in text


def test_an_option_at_its_default_names_a_row_whose_label_leaves_it_out(results):
    run(results, "ddp", 16.0, defaults={"accumulate": 1, "clip": 0.0})
    run(results, "ddp", 10.0, options="accumulate=20", defaults={"clip": 0.0})
    run(results, "ist", 4.0, defaults={"clip": 0.0})

    def speed_ups(baseline):
        return [entry.text for entry in column(table_of(results, baseline), "speed_up").values()]

    assert speed_ups("ddp accumulate=1") == ["baseline", "1.60× to 0.8", "4.00× to 0.8"]
    assert speed_ups("ddp accumulate=20 clip=0") == ["0.625× to 0.8", "baseline", "2.50× to 0.8"]
    assert speed_ups("ddp accumulate=3") == ["–", "–", "–"]


@pytest.mark.parametrize(("nodes", "words"), [((1,), "1 node"), ((1, 4), "1 and 4 nodes")])
def test_nodes_without_a_baseline_are_counted(wide, nodes, words):
    for count in nodes:
        run(wide, "local_sgd", 10.0, nodes=count)
    assert f"Speed-up: none on {words}, ddp has no row there." in footer(table_of(wide))


def test_a_control_on_one_node_needs_no_baseline(wide):
    for nodes in (1, 2):
        run(wide, "diloco", 10.0, nodes=nodes, control_nodes=1)
    text = footer(table_of(wide))
    assert "Speed-up: none" not in text
    assert "Controls: diloco on 1 node. It shows how much of the gain needs no exchange." in text
    run(wide, "local_sgd", 10.0, nodes=1)
    assert "Speed-up: none on 1 node, ddp has no row there." in footer(table_of(wide))


def test_unfinished_runs_at_a_subnets_width_are_named(wide):
    run(wide, "ddp", 8.0, hidden=2048, status="running")
    (table,) = tables_of(wide)
    assert re.search(r"Not counted: 1 of 7 runs", footer(table))
