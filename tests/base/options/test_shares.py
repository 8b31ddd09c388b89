"""Shares of unequal nodes as typed, recorded and divided."""

import msgspec
import pytest

from istbench.base.decode import decode_own, encode_own
from istbench.base.errors import UserError
from istbench.base.options.run import RUN_OPTIONS, RunRequest
from istbench.base.options.shares import Shares, in_proportion
from istbench.base.options.suite import read_suite


def typed(text):
    (option,) = (option for option in RUN_OPTIONS if option.name == "shares")
    return option.decode(text, "--shares", text=True)


@pytest.mark.parametrize(
    ("text", "speeds", "plain"),
    [
        (".5,1,1", (0.5, 1, 1), "0.5,1,1"),
        ("2", (2,), "2"),
        (" 1 , 3e-1", (1, 0.3), "1,0.3"),
        ("speed", (), "speed"),
    ],
)
def test_a_number_for_each_node_or_speeds_to_measure(text, speeds, plain):
    found = typed(text)
    assert found.speeds == speeds
    assert str(found) == plain
    assert Shares.decode(plain) == found
    kind = Shares | None
    written = msgspec.json.encode(found, enc_hook=encode_own)
    assert msgspec.json.decode(written, type=kind, dec_hook=decode_own) == found


@pytest.mark.parametrize("text", ["", "0,1", "-1,1", "fast", "1,,1", "nan,1", "inf,1", "1e9,1", "1;2", "speed,1"])
def test_other_texts_are_refused_in_one_line(text):
    with pytest.raises(
        UserError, match="--shares must be speed, or a number above 0 for each node, such as .5,1,1"
    ):
        typed(text)


@pytest.mark.parametrize("value", [True, 1.0, [], [1, True], [1, None], {"a": 1}])
def test_a_suite_gives_text_or_a_list_of_numbers(value):
    assert Shares.decode([0.5, 1]) == Shares((0.5, 1))
    with pytest.raises(ValueError, match="must be speed, or a number above 0"):
        Shares.decode(value)


def test_a_suite_names_the_line_of_shares_of_other_nodes(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text("workload = 'toy'\nmethods = ['ddp']\nnodes = [2, 3]\n\n[run]\nshares = [1, 2]\n")
    with pytest.raises(
        UserError, match=r"suite.toml, line 6: run.shares has 2 numbers for 3 nodes; give one for each"
    ):
        read_suite(suite)


def test_shares_are_for_as_many_nodes():
    def request(**fields):
        return RunRequest(workload="toy", method="ddp", **fields)

    assert request(nodes=3, shares=Shares((1, 2, 3))).arguments()[-1] == "--shares=1,2,3"
    with pytest.raises(UserError, match="--shares 1,2,3 has 3 numbers for 2 nodes; give one for each node"):
        request(nodes=2, shares=Shares((1, 2, 3)))
    with pytest.raises(UserError, match="--shares 1,2 has 2 numbers for 1 node; give one for each node"):
        request(shares=Shares((1, 2)))
    assert request(nodes=4, shares=Shares()).shares == Shares()


@pytest.mark.parametrize(
    ("total", "shares", "counts"),
    [
        (12, (1, 1, 1), (4, 4, 4)),
        (10, (1, 1, 1), (4, 3, 3)),
        (10, (0.1, 0.1, 0.1), (4, 3, 3)),
        (30, (0.5, 1, 1), (6, 12, 12)),
        (7, (0.52, 1, 1), (1, 3, 3)),
        (4, (1, 1e6), (0, 4)),
    ],
)
def test_things_are_divided_by_largest_remainder(total, shares, counts):
    assert in_proportion(total, shares) == counts


def test_each_gets_the_least_where_there_is_enough():
    assert in_proportion(4, (1, 1e6), least=1) == (1, 3)
    assert in_proportion(5, (1, 1, 1e6), least=1) == (1, 1, 3)
    for total in range(3, 40):
        counts = in_proportion(total, (0.3, 5, 1.7), least=1)
        assert sum(counts) == total
        assert min(counts) >= 1
