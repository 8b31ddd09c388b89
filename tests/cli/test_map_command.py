"""`istbench map` as a user has it."""

import json

import pytest
from fake_runs import write_plausible


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = tmp_path_factory.mktemp("map") / "results"
    for method in ("ddp", "local_sgd"):
        for nodes in (2, 4):
            write_plausible(results, method, nodes=nodes, traced=True)
    return results


def test_map_prints_a_table_draws_it_and_lists_its_cells(results, istbench):
    status, table, said = istbench("map", results, "--bandwidth", "10mbit,10gbit")
    assert status == 0
    assert "first to accuracy 0.8" in table
    assert "Seeds: one in each row, so no spread is known." in table
    assert table.startswith("local_sgd is first to accuracy 0.8 in all 4 cells, ")
    assert "Replayed on m5.2xlarge, among ddp and local_sgd; untuned" in table
    assert "picture: " not in said  # a map of one winner is a sentence
    *_, said = istbench("map", results, "--by", "latency", "--latency", "1ms,50ms", "--nodes", 2)
    assert said.count("picture: ") == len(list((results / "report").glob("*-map-by-latency-to-0-8.svg")))
    status, text, said = istbench("map", results, "--bandwidth", "10mbit,10gbit", "--json", "--no-pictures")
    cells = json.loads(text)
    assert (status, "picture" in said) == (0, False)
    assert [(cell["bandwidth"], cell["nodes"]) for cell in cells] == [(1e7, 2), (1e10, 2), (1e7, 4), (1e10, 4)]
    for cell in cells:
        assert {"winner", "seconds", "over_next"} <= cell.keys()
        assert cell["winner"] in ("ddp", "local_sgd")
    asked = ["--by", "latency", "--latency", "1ms,50ms", "--nodes", 2, "--json", "--no-pictures"]
    status, text, _ = istbench("map", results, *asked)
    assert (status, sorted({cell["latency_s"] for cell in json.loads(text)})) == (0, [0.001, 0.05])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "local_step"], "unknown axis 'local_step' in --by"),
        (["--latency", "1ms"], "--latency is for --by latency"),
        (["--by", "latency", "--nodes", "2,4"], "a map by latency has one number of nodes"),
        (["--by", "latency", "--latency", "soon"], "--latency: 'soon' is not a time"),
        (["--bandwidth", "fast"], "'fast' is not a bandwidth"),
        (["--target", "high"], "--target must be a number, not 'high'"),
        (["--nodes", "none"], "--nodes must be a whole number"),
        (["--cluster", "m5.2xlage"], "did you mean 'm5.2xlarge'"),
        (["--workload", "speach"], "did you mean 'speech'"),
    ],
)
def test_map_refuses_bad_input_in_one_line(results, istbench, arguments, message):
    status, _, said = istbench("map", results, "--bandwidth", "1gbit", *arguments)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said
