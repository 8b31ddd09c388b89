"""The advice as JSON and in words."""

import dataclasses
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import ACCURACY, LINKS, candidate, curve, straight

from istbench.base.decode import decode_json
from istbench.studies.advise.advice_text import advice_section, advice_text, candidates_table, truth_lines
from istbench.studies.advise.answer import Advice, RankedChoice, advise
from istbench.studies.advise.candidate import NO_TIME, ONE_NODE
from istbench.studies.advise.flips import Flip, Flips
from istbench.studies.advise.odds import Decide
from istbench.studies.advise.steps_to_target import TOO_FEW

PRICED = dataclasses.replace(LINKS, price_per_hour=3.6, name="m5.2xlarge at 800 Mbit/s")
FLAT = {0: curve([(step, 0.5) for step in range(0, 100, 10)])}
DDP = candidate("ddp", baseline=True)
IST = candidate("ist local_steps=10", method="ist", local_steps=10, compute=0.0115, options={"local_steps": 10})


def advice(*candidates, profile=PRICED, **changed):
    asked = {"workload": "speech", "nodes": 2, "metric": ACCURACY, "target": 0.8, **changed}
    return advise(candidates, profile, **asked)


@pytest.fixture(scope="module")
def clear():
    others = [candidate("ddp accumulate=4", method="ddp", curves=FLAT, baseline=True)]
    others.append(candidate("p3", failed="needs 9 GiB per node, more than 3"))
    return advice(IST, DDP, *others, not_tested=["Batch sizes: all trained with 128"])


def test_the_json_has_the_fields_that_programs_read(clear):
    found = json.loads(msgspec.json.encode(clear))
    assert {"verdict", "odds", "best", "others", "flips", "not_tested"} <= found.keys()
    assert {"method", "options", "command", "seconds", "low", "high"} <= found["best"].keys()
    assert set(found["flips"]) == {"bandwidth", "latency", "nodes"}
    assert (found["verdict"], found["best"]["method"], found["best"]["options"]) == (
        "clear",
        "ist",
        {"local_steps": 10},
    )
    assert found["best"]["command"] == ["istbench", "run", "speech", "--method", "ist"]
    assert found["best"]["dollars"] == pytest.approx(found["best"]["seconds"] * 2 * 3.6 / 3600)
    assert [other["label"] for other in found["others"]] == ["ddp", "ddp accumulate=4", "p3"]
    assert found["others"][1]["seconds"] is None
    assert found["others"][2]["why_not"] == "needs 9 GiB per node, more than 3"
    assert decode_json(msgspec.json.encode(clear), Advice, "advice", "ask again") == clear


def test_the_text_has_the_order_of_a_decision(clear):
    text = advice_text(clear)
    order = [
        "ist local_steps=10 takes ", " to accuracy 0.8 on 2 nodes of m5.2xlarge at 800 Mbit/s",
        "ddp takes ", "times as long", "ddp accumulate=4 is not expected to reach it",
        "istbench run speech --method ist",
        "Clear: the odds that ist local_steps=10 is first are 0.99",
        "Why:", "s of computing", "s of exposed communication", "local steps",
        "Where the answer flips:", "Bandwidth: from ", "Latency: ", "Nodes: ",
        "Not tested:", "Training beyond the 110 local steps", "learning rates", "A GPU", "Batch sizes",
    ]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "$" in text
    assert text.splitlines()[0].startswith("ist local_steps=10 takes ")


def test_the_text_says_options_that_all_share_once():
    same = "optimizer=adam lr=0.01"
    found = advice(
        candidate(f"ist {same} local_steps=10", method="ist", local_steps=10, compute=0.0115),
        candidate(f"ddp {same}", method="ddp", baseline=True),
        candidate(f"ddp {same} accumulate=4", method="ddp", baseline=True, failed=f"as fast as ddp {same}"),
        candidate(ONE_NODE, method="ddp", steps=(900,), size=1, baseline=True, nodes=1),
        not_tested=[f"The memory of a node: that of ddp {same}, and of ddp {same}1"],
    )
    text = advice_text(found)
    assert text.count(same) == 2
    assert f"All train with {same}.\n" in text
    for line in ("ist local_steps=10 takes ", "\nddp takes ", "\nddp accumulate=4: as fast as ddp."):
        assert line in text, line
    assert f"of ddp, and of ddp {same}1" in text
    assert truth_lines(found, {f"ddp {same}": 3.0})[0] == "ddp: 3.00 s"
    assert found.best.label == f"ist {same} local_steps=10"


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        ([candidate("ddp", stopped=NO_TIME, curves={})], "no probe finished in the time. Give more --minutes."),
        ([candidate("ddp", curves={}), candidate("ist", failed="diverged")], "no probe finished in the time"),
        (
            [candidate(name, failed="needs 9 GiB") for name in ("ddp", "fsdp", "ist", "zero")],
            "no method can train there. ddp: needs 9 GiB; fsdp: needs 9 GiB; ist: needs 9 GiB; ...",
        ),
    ],
)
def test_without_an_answer_the_text_says_why(candidates, said):
    assert said in advice_text(advice(*candidates))


def test_the_text_and_the_table_say_how_many_seeds_diverged():
    found = advice(candidate("ddp", baseline=True, steps=(100, 110), diverged=1))
    assert "\n1 of its 3 seeds diverged.\n" in advice_text(found)
    assert "diverged" in [column.key for column in candidates_table(found).columns]
    assert "diverged" not in advice_text(advice(DDP))


def test_the_text_says_where_a_target_comes_from():
    first = advice_text(advice(DDP, target_from="which one node reached in 41 s")).splitlines()[0]
    assert "accuracy 0.8 (which one node reached in 41 s; --target asks for another) on 2 nodes" in first
    assert "--target" not in advice_text(advice(DDP))


def test_a_close_answer_says_how_much_a_measurement_would_help():
    found = advice(DDP, candidate("zero", compute=0.0105))
    assert found.verdict == "close"
    assert found.odds == found.best.odds < 0.8
    text = advice_text(found)
    assert "Too close to call: the odds that " in text
    for kind, method, words in (
        ("probe", "", "a longer probe"), ("seeds", "", "more seeds"), ("replay", "zero", "validate --methods zero"),
    ):  # fmt: skip
        deciding = msgspec.structs.replace(found, decide=Decide(kind=kind, method=method, odds=0.85))
        assert "The measurement that would decide: " in advice_text(deciding)
        assert words in advice_text(deciding)
        helping = msgspec.structs.replace(found, decide=Decide(kind=kind, method=method, odds=0.7))
        assert "No single measurement decides. The one that helps most is " in advice_text(helping)
    undecided = advice_text(msgspec.structs.replace(found, decide=None))
    assert "No single measurement decides: none is expected to raise the top odds." in undecided


def test_a_close_answer_is_of_the_trained_candidates_if_another_may_be_faster():
    found = advice(DDP, candidate("zero", compute=0.0105), untrained("local_sgd", NO_TIME, compute=0.001, size=8))
    assert (found.verdict, found.may_be_faster) == ("close", ("local_sgd",))
    text = advice_text(msgspec.structs.replace(found, decide=Decide(kind="seeds", odds=0.85)))
    assert "is first of the trained candidates are " in text
    assert "No probe tells whether these are faster: local_sgd." in text
    assert "The measurement that would decide among the trained candidates: more seeds" in text


def test_one_node_is_a_row_and_if_it_is_first_the_answer_is_one_machine():
    alone = candidate(ONE_NODE, method="ddp", steps=(60,), size=1, baseline=True, nodes=1)
    found = advice(candidate("ddp", steps=(100,), size=10_000_000, baseline=True), alone)
    assert (found.best.label, found.best.nodes, found.others[0].nodes) == (ONE_NODE, 1, 2)
    assert advice_text(found).startswith("One machine is enough: one node takes ")
    unsure = msgspec.structs.replace(found, verdict="close", odds=0.41)
    assert advice_text(unsure).startswith("One machine may be enough: one node takes ")
    assert "on 1 node of m5.2xlarge" in advice_text(found)
    assert found.best.dollars == pytest.approx(found.best.seconds * 3.6 / 3600)
    later = advice(candidate("ddp", steps=(20,), size=1, baseline=True), alone)
    assert later.best.label == "ddp"
    assert "one node takes " in advice_text(later)


def test_one_node_alone_compares_with_nothing():
    alone = candidate(ONE_NODE, method="ddp", steps=(60,), size=1, baseline=True, nodes=1)
    found = advice(alone, untrained("ddp", NO_TIME, baseline=True))
    assert (found.verdict, found.best, found.nobody) == ("none", None, None)
    assert [(one.label, one.odds) for one in found.others] == [(ONE_NODE, None), ("ddp", None)]
    text = advice_text(found)
    assert ": no probe finished in the time but that of one node. Give more --minutes." in text
    assert "One machine is enough" not in text
    nobody_else = advice(alone, candidate("ddp", failed="needs 9 GiB"))
    assert nobody_else.best.label == ONE_NODE


@pytest.mark.parametrize(("compute", "faster"), [(0.015, ("local_sgd",)), (0.021, ())])
def test_a_step_of_two_nodes_may_learn_twice_as_much_as_one_of_one_node(compute, faster):
    alone = candidate(ONE_NODE, method="ddp", steps=(60,), size=1, baseline=True, nodes=1)
    slow = candidate("ddp", steps=(100,), size=10_000_000, baseline=True)
    found = advice(alone, slow, untrained("local_sgd", NO_TIME, compute=compute, size=8))
    assert (found.best.label, found.may_be_faster) == (ONE_NODE, faster)


def test_an_untested_candidate_has_no_odds():
    found = advice(IST, candidate("p3", curves={}, trace=None, stopped=NO_TIME))
    untested = found.others[-1]
    assert (untested.label, untested.odds, untested.reaching, untested.why_not) == ("p3", None, None, NO_TIME)
    assert json.loads(msgspec.json.encode(found))["others"][-1]["odds"] is None
    row = candidates_table(found).rows[-1]
    assert [entry.text for entry in (*row[:3], row[-1])] == ["p3", "–", "–", "untested: no time"]


def test_options_of_all_candidates_stand_once_above_the_table():
    table = candidates_table(advice(candidate("ist lr=0.1 local_steps=9"), candidate("ddp lr=0.1", compute=0.02)))
    assert table.title.startswith("Candidates, all with lr=0.1: ")
    assert {row[0].text for row in table.rows} == {"ist local_steps=9", "ddp"}


def test_odds_are_rounded_towards_doubt():
    found = advice(IST, DDP)
    for odds, words in ((0.799, "0.79"), (0.29, "0.29"), (1.0, "0.99")):
        text = advice_text(msgspec.structs.replace(found, odds=odds))
        assert f"is first are {words}; " in text


def test_without_a_finished_probe_the_answer_claims_nothing():
    found = advice(candidate("ddp", curves={}, trace=None, stopped=NO_TIME, baseline=True))
    assert (found.verdict, found.best, found.nobody) == ("none", None, None)
    text = advice_text(found)
    assert "no probe finished in the time. Give more --minutes." in text
    assert "Not tested:\n  Every method: no probe has finished" in text
    assert "odds" not in text


def test_probes_that_are_too_short_give_no_advice():
    found = advice(candidate("ist", curves={0: curve([(0, 0.1), (80, 0.7)])}))
    assert (found.verdict, found.best, found.nobody) == ("none", None, None)
    assert (found.others[0].why_not, found.others[0].steps_probed) == ("too few evaluations to extrapolate", 80)
    assert "no probe tells enough in the time. Give more --minutes." in advice_text(found)


def test_nobody_gets_there(clear):
    found = advice(candidate("ddp", curves=FLAT), candidate("ist", curves=FLAT))
    assert (found.verdict, found.best, found.odds, found.nobody) == ("none", None, 0.0, 1.0)
    text = advice_text(found)
    assert text.startswith("No candidate is expected to reach accuracy 0.8 on 2 nodes of m5.2xlarge")
    assert "Why:" not in text
    assert msgspec.json.decode(msgspec.json.encode(found), type=Advice) == found


def untrained(label, why, **changed):
    return candidate(label, curves={}, stopped=why, **changed)


def test_candidates_that_nobody_trained_are_named():
    rest = [
        untrained("local_sgd", NO_TIME, compute=1.0), untrained("zero", "learns as ddp does", compute=0.001),
        untrained("dslide", "it trains amazon670k only", trace=None),
        candidate("diloco", compute=1.0, failed=TOO_FEW),
        candidate("p3", compute=1.0, learns_as="ddp"),
    ]  # fmt: skip
    found = advice(dataclasses.replace(IST, memory_bytes=2**20), DDP, *rest)
    assert (found.verdict, found.may_be_faster) == ("clear", ())
    for line in (
        "No time to train: local_sgd", "Left out by their speed here, may win on other networks: zero",
        "Too few evaluations to extrapolate: diloco", "The memory of a node: that of ddp, p3 is not known",
        "p3 itself: it makes the optimizer steps of ddp, in the seconds of its plan",
    ):  # fmt: skip
        assert line in found.not_tested


@pytest.mark.parametrize("changed", [{"compute": 0.001, "size": 8}, {"trace": None}])
def test_an_answer_is_close_while_a_candidate_without_a_probe_may_be_faster(changed):
    found = advice(IST, DDP, untrained("local_sgd", NO_TIME, **changed))
    assert found.odds > 0.8
    assert (found.verdict, found.may_be_faster, found.decide) == ("close", ("local_sgd",), None)
    text = advice_text(found)
    assert "Too close to call: the odds that ist local_steps=10 is first of the trained candidates are 0.99" in text
    assert "No probe tells whether these are faster: local_sgd. More --minutes train them." in text
    assert "No single measurement" not in text


def test_a_likelier_candidate_that_mostly_misses_is_named_and_not_recommended():
    curves = {seed: straight(100) if seed < 3 else FLAT[0] for seed in range(7)}
    fast = candidate("fast", compute=0.001, curves=curves)
    found = advice(fast, candidate("slow", compute=0.1), candidate("other", compute=0.1, steps=(101,)))
    assert (found.verdict, found.best.method) == ("close", "slow")
    assert found.best.odds < found.others[-1].odds
    text = advice_text(found)
    assert "slow takes " in text
    assert "fast has higher odds, but reaches the target in only 4" in text
    assert advice(fast, dataclasses.replace(fast, method="p3", label="p3")).verdict == "none"


def test_saved_advice_whose_best_has_no_expected_time_prints():
    found = advice(DDP)
    bare = msgspec.structs.replace(found.best, seconds=None, low=None, high=None, steps=None)
    text = advice_text(msgspec.structs.replace(found, best=bare))
    assert "ddp reaches accuracy 0.8 in less than half of the draws, so it has no expected time." in text


def test_a_metric_that_falls_has_its_unit_and_its_direction():
    loss = dataclasses.replace(ACCURACY, name="loss", lower_is_better=True, unit="nats")
    curves = {0: curve([(step, 3 - step / 50) for step in range(0, 110, 10)], loss)}
    found = advice(candidate("ddp", curves=curves), metric=loss, target=1.5)
    assert found.best.steps == pytest.approx(75, rel=0.02)
    assert (found.own_metric, found.verdict) == (loss, "clear")
    assert "to loss (nats) 1.5 on" in advice_text(found)


def test_the_page_has_the_same_words_and_a_row_for_each_candidate(clear):
    section, table = advice_section(clear), candidates_table(clear)
    assert section.table == table
    assert (
        section.title == "Which method trains speech to accuracy 0.8 first on 2 nodes of m5.2xlarge at 800 Mbit/s?"
    )
    lines = [line for _, paragraph in section.paragraphs for line in paragraph]
    assert all(line in advice_text(clear) for line in [section.command, *lines])
    assert [row[0].text for row in table.rows] == ["ist local_steps=10", "ddp", "ddp accumulate=4", "p3"]
    keys = [column.key for column in table.columns]
    assert keys[:4] == ["candidate", "odds", "seconds", "dollars"]
    assert [row[2].text for row in table.rows[2:]] == ["not expected", "–"]
    assert [row[-1].text for row in table.rows[2:]] == ["–", "needs 9 GiB per node, more than 3"]
    assert section.outcome == "unsure"  # of one seed


def test_options_of_several_numbers_are_as_on_a_command_line():
    found = advice(candidate("a", options={"betas": (0.9, 0.95), "name": "x", "on": True, "none": None}))
    assert found.best.options == {"betas": "0.9,0.95", "name": "x", "on": True, "none": None}


NUMBERS = st.none() | st.floats(0, 1e9)
TEXTS = st.text(max_size=20)
OPTIONS = st.dictionaries(TEXTS, st.booleans() | st.integers(-9, 9) | TEXTS, max_size=3)
CHOICES = st.builds(
    RankedChoice, method=TEXTS, label=TEXTS, command=st.lists(TEXTS, max_size=3), seconds=NUMBERS, low=NUMBERS,
    high=NUMBERS, options=OPTIONS, odds=st.floats(0, 1), steps=st.floats(1, 1e9), computing=st.floats(0, 1),
    exposed=st.floats(0, 1), nodes=st.integers(1, 99),
)  # fmt: skip
FLIPS = st.builds(Flip, value=NUMBERS, side=st.sampled_from(["", "below", "above"]), first=TEXTS, reason=TEXTS)


@given(
    st.builds(
        Advice, verdict=st.sampled_from(["clear", "close", "none"]), odds=st.floats(0, 1), best=st.none() | CHOICES,
        others=st.lists(CHOICES, max_size=3).map(tuple), not_tested=st.lists(TEXTS, max_size=3).map(tuple),
        flips=st.builds(Flips, bandwidth=FLIPS, latency=FLIPS, nodes=FLIPS), workload=TEXTS, metric=TEXTS,
        target=st.floats(-1e9, 1e9), cluster=TEXTS, nodes=st.integers(1, 99),
    )
)  # fmt: skip
def test_advice_comes_back_from_json_as_it_was(found):
    assert msgspec.json.decode(msgspec.json.encode(found), type=Advice) == found
