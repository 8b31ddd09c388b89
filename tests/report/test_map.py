"""Maps of the methods that are first."""

import dataclasses
import json
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest
from fake_clusters import BARE, sweep_of, write_pair
from fake_runs import averaging_trace, header, ramp, write_run

from istbench.base.errors import UserError
from istbench.cluster.faults import Faults
from istbench.cluster.profile import SharedHost
from istbench.cluster.replay_checks import known_checks
from istbench.report.answer import answer
from istbench.report.map import build_maps, winner_map
from istbench.report.output.map_picture import draw_maps
from istbench.report.phrases import Caution, Lead

SLOW, FAST = 8e6, 8e9


def bare(*bandwidths, **changed):
    return [
        dataclasses.replace(BARE.with_bandwidth(bits), name=f"bare at {bits:g} {changed}", **changed)
        for bits in bandwidths
    ]


def map_of(results, *bandwidths, **how):
    (found,), _ = build_maps(results, {"bare": bare(*bandwidths)}, cluster="bare", **how)
    return found


def write(results, method, seconds, *, seed=0, every=1, nodes=2, value=0.9, **changed):
    """A run of 100 steps of so many seconds, with an all-reduce of 1 MB after each `every` of them."""
    trace = averaging_trace(nodes, compute=(seconds,), local_steps=every)
    write_run(results, header(method, seed=seed, nodes=nodes, **changed), ramp(5.0, value), trace=trace)


def test_the_first_method_depends_on_the_bandwidth_and_leads_by_the_ratio_of_the_seconds(results):
    write_pair(results)
    found = map_of(results, SLOW, FAST)
    assert (found.columns, found.rows) == (("8 Mbit/s", "8 Gbit/s"), ("2",))
    ((slow, fast),) = found.tiles
    # A step of ddp takes 10 ms and the time of 1 MB; one of local_sgd takes 30 ms and that of 0.1 MB.
    assert (slow.winner, fast.winner) == ("local_sgd", "ddp")
    assert slow.over_next == pytest.approx(1.01 / 0.13, rel=0.01)
    assert fast.over_next == pytest.approx(0.0301 / 0.011, rel=0.01)
    assert fast.seconds == pytest.approx(0.8 / 0.9 * 100 * 0.011, rel=0.01)
    assert [tile.text for tile in found.tiles[0]] == ["local_sgd 7.77×", "ddp 2.74×"]
    record = json.loads(json.dumps(found.records(), allow_nan=False))[0]
    expected = {"bandwidth": SLOW, "nodes": 2, "winner": "local_sgd", "extrapolated": False, "target": 0.8}
    assert expected.items() <= record.items()
    assert record["over_next"] == slow.over_next
    assert found.answers == (
        "First to accuracy 0.8 of ddp and local_sgd: local_sgd in 1 of 2 cells, ddp in 1.",
        "Replayed on bare, among ddp and local_sgd; untuned; 30 epochs; one seed each, so no spread is known.",
    )


def test_a_recording_on_a_busy_machine_is_named_below_the_map(results):
    write_pair(results)
    trace = averaging_trace(2, compute=(0.01,), local_steps=1)
    busy = dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, cores=2, others_cores=1.9))
    write_run(results, header("ist", nodes=2), ramp(5.0, 0.9), trace=busy)
    (line,) = (line for line in map_of(results, FAST).table().footer if "far off" in line)
    assert isinstance(line, Caution)
    assert "1 of 3 runs may be far off, for example ist on 2 nodes seed 0: others used 1.9 of 2 cores" in line


def test_hosts_of_several_nodes_are_named_below_the_map(results):
    write_pair(results)
    host = SharedHost(nodes=2, bandwidth=1e9, latency_s=5e-6)
    (found,), _ = build_maps(results, {"bare": bare(SLOW, host=host)}, cluster="bare")
    assert (
        "Network: 2 nodes share the link of a host; inside it each has 1 Gbit/s out and in, 5 µs to another."
        in (found.table().footer)
    )
    assert not [line for line in map_of(results, SLOW).table().footer if line.startswith("Network")]


def test_unequal_trials_are_named_below_the_map(results):
    write_pair(results)
    assert not [line for line in map_of(results, FAST).table().footer if "Tuned" in line]
    head = header("ist", nodes=2)
    head["config"]["tuned"] = 20
    write_run(results, head, ramp(5.0), trace=averaging_trace(2))
    (line,) = (line for line in map_of(results, FAST).table().footer if "Tuned" in line)
    assert isinstance(line, Caution)
    assert "20 for ist on 2 nodes" in line
    assert "none for ddp on 2 nodes" in line


def test_ranges_over_seeds_that_overlap_are_too_close_to_call(results):
    for seed, seconds in enumerate((0.01, 0.03)):
        write(results, "ddp", seconds, seed=seed)
        write(results, "ist", seconds + 0.001, seed=seed)
        write(results, "local_sgd", 1.0, seed=seed)
    ((tile,),) = map_of(results, FAST).tiles
    assert (tile.verdict, tile.winner, tile.leaders) == ("close", None, ("ddp", "ist"))
    assert tile.text == "ddp or ist too close"
    assert map_of(results, FAST).answers[0].endswith(": 1 of 1 too close to call.")
    assert tile.over_next > 1


def test_a_seed_that_missed_overlaps_with_all_that_reached_the_target(results):
    for seed, value in enumerate((0.9, 0.9, 0.1)):
        write(results, "ddp", 0.01, seed=seed, value=value)
        write(results, "ist", 0.05, seed=seed)
        write(results, "local_sgd", 0.05, seed=seed, value=0.1)
    ((tile,),) = map_of(results, FAST).tiles
    assert (tile.verdict, tile.leaders) == ("close", ("ddp", "ist"))


def test_a_minority_of_seeds_that_is_as_early_is_too_close_to_call(results):
    for seed, (ddp, local_sgd) in enumerate(((0.9, 0.9), (0.9, 0.1), (0.1, 0.1))):
        write(results, "ddp", 0.02, seed=seed, value=ddp)
        write(results, "local_sgd", 0.01, seed=seed, value=local_sgd)
    ((tile,),) = map_of(results, FAST).tiles
    assert (tile.text, tile.over_next) == ("ddp or local_sgd too close", None)


def test_a_target_that_nobody_reached_and_one_that_a_single_method_reached(results):
    write(results, "ddp", 0.01, value=0.1)
    write(results, "ist", 0.01, value=0.75)
    ((tile,),) = map_of(results, FAST, target=0.95).tiles
    assert (tile.verdict, tile.winner, tile.seconds, tile.text) == ("nobody", None, None, "nobody")
    found = map_of(results, FAST)
    assert found.target.level == 0.7  # the hardest that a method reached
    assert found.answers[0] == "First to accuracy 0.7 of ddp and ist: ist."
    sweep = sweep_of(results, FAST)
    chosen = winner_map([sweep], "nodes", "bare", target=sweep.groups[0].targets[-1])
    assert (chosen.target.level, chosen.tiles[0][0].verdict) == (0.8, "nobody")
    assert chosen.answers[0].endswith(": nobody in 1.")
    assert (found.tiles[0][0].winner, found.tiles[0][0].over_next, found.tiles[0][0].text) == (
        "ist",
        None,
        "ist others missed",
    )


def write_levels(results):
    """On 2 nodes ddp and ist reach 0.7 at most; on 4 nodes ddp reaches 0.8."""
    write(results, "ddp", 0.01, value=0.75)
    write(results, "ist", 0.05, value=0.75)
    write(results, "ddp", 0.01, nodes=4)
    write(results, "ddp", 0.01, nodes=4, seed=1)


def test_the_target_and_the_words_are_those_of_the_nodes_that_the_map_shows(results):
    write_levels(results)
    found = winner_map([sweep_of(results, FAST)], "nodes", "bare", nodes=[2])
    assert found.answers[0] == "First to accuracy 0.7 of ddp and ist: ddp."
    assert "among ddp and ist; " in found.answers[1]
    assert "Among ddp and ist; " in found.words
    assert "one seed each" in found.answers[1]
    assert map_of(results, FAST).answers[0].startswith("First to accuracy 0.8 of ddp and ist on 2 and 4 nodes: ")


def test_the_target_of_a_map_by_latency_is_that_of_its_nodes(results):
    write_levels(results)
    families = {f"bare, {ms} ms": bare(FAST, latency_s=ms / 1e3) for ms in (0, 1000)}
    (found,), _ = build_maps(results, families, by="latency", cluster="bare")
    assert found.target.level == 0.7
    assert [row[0].nodes for row in found.tiles] == [2, 2]


def test_the_only_method_that_ran_has_no_winner_and_says_so(results):
    write_pair(results)
    write(results, "ddp", 0.01, nodes=4)
    found = map_of(results, FAST)
    two, four = (row[0] for row in found.tiles)
    assert (two.rivals, four.rivals, four.verdict, four.winner) == (1, 0, "only", None)
    assert four.text == "ddp no other ran"
    assert found.records()[1]["winner"] is None
    assert found.records()[1]["leaders"] == ["ddp"]
    _, svg = draw_maps([found], results / "report")
    words = [text.strip() for text in ElementTree.parse(svg).getroot().itertext()]
    assert {"no other ran", "no other method ran"} <= set(words)


def test_a_lead_within_the_errors_of_replays_is_too_close_as_in_the_answer(results):
    error = abs(known_checks()["ddp"].largest)
    write(results, "ddp", 0.01)
    write(results, "ist", 0.01 * (1 + error / 2))
    ((tile,),) = map_of(results, FAST).tiles
    assert (tile.verdict, tile.leaders) == ("close", ("ddp", "ist"))
    (group,) = sweep_of(results, FAST).groups
    assert answer(group, group.targets[-1]).outcome == "close"


def redeal(run, trace, nodes):
    dealt = msgspec.structs.replace(run.header, nodes=nodes)
    return dataclasses.replace(run, header=dealt, extrapolated_from=run.header.nodes), averaging_trace(nodes)


def test_cells_with_a_method_that_was_never_run_on_their_nodes_are_marked(results):
    write(results, "ddp", 0.01)
    write(results, "ist", 0.05)
    write(results, "ist", 0.05, nodes=4)
    found = map_of(results, FAST, nodes=[2, 4], redeal=redeal)
    assert found.rows == ("2", "4")
    assert [row[0].extrapolated for row in found.tiles] == [False, True]
    assert found.tiles[1][0].text.endswith("×*")
    footer = found.table().footer
    assert any(isinstance(line, Caution) and line.startswith("*: extrapolated") for line in footer)
    assert map_of(results, FAST).rows == ("2", "4")  # by default those that were run


def test_a_close_method_that_was_never_run_marks_the_cell_also_as_the_third(results):
    for seed, seconds in enumerate((0.008, 0.0105)):
        write(results, "ist", seconds, seed=seed, nodes=4)
        write(results, "local_sgd", seconds + 0.0001, seed=seed, nodes=4)
        write(results, "ddp", 0.01, seed=seed)
    tile = map_of(results, FAST, nodes=[4], redeal=redeal).tiles[0][0]
    assert tile.leaders == ("ist", "local_sgd", "ddp")
    assert tile.extrapolated


def test_the_other_axis_may_be_the_latency_on_the_nodes_with_the_most_methods(results):
    write_pair(results)
    write(results, "ddp", 0.01, nodes=4)
    families = {f"bare, {ms} ms": bare(FAST, latency_s=ms / 1e3) for ms in (0, 1000)}
    (found,), _ = build_maps(results, families, by="latency", cluster="bare")
    assert found.rows == ("0 ms", "1000 ms")
    assert [row[0].winner for row in found.tiles] == ["ddp", "local_sgd"]
    assert [(record["latency_s"], record["nodes"]) for record in found.records()] == [(0.0, 2), (1.0, 2)]


def test_the_other_axis_may_be_an_option_and_methods_without_it_stand_in_every_row(results):
    write(results, "ddp", 0.02)
    for every in (2, 10):
        write(results, "local_sgd", 0.03, every=every, options=f"local_steps={every}")
    found = map_of(results, SLOW, FAST, by="local_steps")
    assert found.rows == ("10", "2")  # fake options are texts
    assert [[tile.winner for tile in row] for row in found.tiles] == [
        ["local_sgd local_steps=10", "ddp"],
        ["local_sgd local_steps=2", "ddp"],
    ]
    with pytest.raises(UserError, match="unknown axis 'local_step' in --by; did you mean 'local_steps'"):
        map_of(results, FAST, by="local_step")


def test_runs_without_a_target_are_refused_with_the_way_out(results):
    noise = {"kind": "synthetic", "fingerprint": "ab" * 32, "train": 1000, "test": 100, "learnable": False}
    for method in ("ddp", "ist"):
        write(results, method, 0.01, targets=[], data_source=noise)
    with pytest.raises(UserError, match="no map of .*: its runs have no target.*; --target names a level"):
        map_of(results, FAST)
    assert map_of(results, FAST, target=0.5).target.level == 0.5


def test_the_table_says_data_clock_and_error_of_replays_first(results):
    write_pair(results)
    table = map_of(results, SLOW, FAST).table()
    assert [column.title for column in table.columns] == ["nodes", "8 Mbit/s", "8 Gbit/s"]
    assert [entry.text for entry in table.rows[0]] == ["2", "local_sgd 7.77×", "ddp 2.74×"]
    first = table.footer[0]
    assert isinstance(first, Lead)
    for said in (
        "Among ddp and local_sgd; untuned; 30 epochs.",
        "SYNTHETIC",
        "Seconds: recorded on cpu, replayed on bare",
        "Replays were off by up to ",
        "% in a lab (ddp, ",
    ):
        assert said in first
    assert any(isinstance(line, Caution) and line.startswith("Seeds: one") for line in table.footer)


def test_a_map_of_one_winner_is_a_sentence_and_no_picture(results):
    for nodes in (2, 4):
        write(results, "ddp", 0.04, nodes=nodes)
        write(results, "ist", 0.001, nodes=nodes)
    found = map_of(results, FAST / 2, FAST)
    assert found.sentence.startswith("ist is first to accuracy 0.8 in all 4 cells, 4 Gbit/s to 8 Gbit/s and ")
    assert "2, 4 nodes: " in found.sentence
    assert found.sentence.endswith(" times as fast as the next.")
    assert found.table().footer[0] == found.sentence
    assert draw_maps([found], results / "report") == []
    assert map_of(results, SLOW, FAST).sentence == ""


def test_every_tile_of_the_picture_has_its_words(results):
    for seed, seconds in enumerate((0.01, 0.03)):
        write(results, "ddp", seconds, seed=seed)
        write(results, "ist", seconds + 0.001, seed=seed)
        for method in ("ddp", "ist"):
            write(results, method, 0.01, seed=seed, nodes=4, value=0.1)
    found = map_of(results, FAST, target=0.7, nodes=[2, 4, 8], redeal=redeal)
    assert [row[0].verdict for row in found.tiles] == ["close", "nobody", "nobody"]
    png, svg = draw_maps([found], results / "report")
    assert png.read_bytes().startswith(b"\x89PNG")
    words = [text.strip() for text in ElementTree.parse(svg).getroot().itertext() if text.strip()]
    for said in (
        "ddp or ist",
        "too close",
        "nobody",
        "too close to call",
        "nobody reached it",
        "* never run on so many nodes",
    ):
        assert said in words


def test_with_faults_all_seconds_are_means_and_the_slower_method_loses_more(results):
    write_pair(results)
    ((_, without),) = map_of(results, SLOW, FAST).tiles
    found = map_of(results, SLOW, FAST, faults=Faults(mtbf_s=4.0, restart_s=0.5, checkpoint_s=0.0))
    ((_, fast),) = found.tiles
    assert fast.winner == "ddp"
    assert fast.seconds > without.seconds
    assert fast.over_next > without.over_next
    assert found.title.endswith("first to accuracy 0.8, a fault of each node every 4 s")
    assert "ends all nodes, which go on from the last checkpoint after 0.5 s" in found.words
    assert found.stem.endswith("-mtbf-4s")
    assert found.records()[0]["mtbf_s"] == 4.0
