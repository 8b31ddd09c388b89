"""The sentences on top of a page."""

import pytest
from fake_clusters import sweep_of, write_pair
from fake_runs import header, ramp, write_run
from read_tables import group_of

from istbench.cluster.profile import load_profile
from istbench.cluster.replay_checks import known_checks
from istbench.report.answer import _worst, answer, answer_lines, row_times
from istbench.report.groups import by_study
from istbench.report.report import build_report


def answered(group, level=0.8):
    (target,) = (target for target in group.targets if target.level == level)
    found = answer(group, target)
    return found, " ".join((*found.verdict, *found.basis))


def test_the_first_method_is_named_with_its_lead_seeds_and_cost(results):
    for seed in range(3):
        write_run(results, header("ist", seed=seed), ramp(9.0 + seed))
        write_run(results, header("ddp", seed=seed), ramp(27.0 + 3 * seed))
    found, text = answered(group_of(results))
    assert found.outcome == "first"
    assert found.verdict[0] == (
        "ist on 2 nodes is the first of ddp and ist to reach accuracy 0.8, in 8.89 s [8.00–9.78], measured on "
        "laptop; 3 of 3 seeds reached it. Next, ddp on 2 nodes takes 26.7 s [24.0–29.3], 3.00 times as long."
    )
    assert "it is 3.00 times [3.00–3.00] as fast as ddp on as many nodes" in text
    assert "Cost to the target: ist on 2 nodes 1.78 MB sent per node; ddp on 2 nodes 1.78 MB sent" in text
    assert "Measured on laptop (8 cores, cpu)." in text
    assert "SYNTHETIC" in text
    assert "say nothing about the real dataset" in text


def test_the_next_row_takes_longer_by_the_ratio_over_pairs_as_on_a_map(results):
    for seed, (fast, slow) in enumerate([(9.0, 36.0), (10.0, 30.0), (20.0, 50.0)]):
        write_run(results, header("ist", seed=seed), ramp(fast))
        write_run(results, header("ddp", seed=seed), ramp(slow))
    found, text = answered(group_of(results))
    assert found.verdict[0].endswith("Next, ddp on 2 nodes takes 32.0 s [26.7–44.4], 3.00 times as long.")
    assert "it is 3.00 times [2.50–4.00] as fast as ddp on as many nodes" in text


def test_rows_of_unequal_seeds_have_the_ratio_of_the_medians_beside_them(results):
    for seed, fast in enumerate((9.0, 27.0, 27.0)):
        write_run(results, header("ist", seed=seed), ramp(fast))
    write_run(results, header("ddp", seed=0), ramp(36.0))
    assert "takes 32.0 s, 1.33 times as long" in answered(group_of(results))[0].verdict[0]


def test_of_rows_that_mostly_missed_that_with_more_seeds_at_the_target_is_first(results):
    for method, found in (("ist", (9.0, None, None)), ("ddp", (10.0, 11.0, None, None))):
        for seed, seconds in enumerate(found):
            write_run(results, header(method, seed=seed), ramp(seconds or 9.0, 0.9 if seconds else 0.5))
    group = group_of(results)
    (target,) = (target for target in group.targets if target.level == 0.8)
    assert [row.contender.method for row in row_times(group.contenders, target)] == ["ddp", "ist"]


def test_unequal_trials_are_said_beside_the_answer(results):
    for method, trials in (("ddp", None), ("ist", 20)):
        head = header(method)
        head["config"] |= {"tuned": trials} if trials else {}
        write_run(results, head, ramp(9.0 if trials else 27.0))
    said = "Tuned unequally, by trials: none for ddp on 2 nodes; 20 for ist on 2 nodes."
    assert said in answered(group_of(results))[0].basis


def test_an_answer_leaves_options_to_the_table_where_the_method_names_the_row(results):
    write_run(results, header("ist", options="lr=0.1 local_steps=20"), ramp(9.0))
    for rate, seconds in (("0.2", 27.0), ("0.3", 40.0)):
        write_run(results, header("ddp", options=f"lr={rate}"), ramp(seconds))
    lead = answered(group_of(results))[0].verdict[0]
    assert lead.startswith("ist on 2 nodes is the first of ddp lr=0.2, ddp lr=0.3 and ist to reach accuracy 0.8")
    assert "Next, ddp lr=0.2 on 2 nodes takes" in lead


def test_overlapping_ranges_are_too_close_to_call(results):
    for seed in range(2):
        write_run(results, header("ist", seed=seed), ramp(9.0 + 2 * seed))
        write_run(results, header("ddp", seed=seed), ramp(10.0 + 2 * seed))
    found, text = answered(group_of(results))
    assert found.outcome == "close"
    assert found.verdict[0].startswith(
        "Too close to call of ddp and ist: to accuracy 0.8, ist on 2 nodes takes 8.89 s"
    )
    assert "Their ranges over seeds overlap." in text


def test_nobody_reached_it(results):
    write_run(results, header("ist"), ramp(9.0, 0.75))
    write_run(results, header("ddp"), ramp(9.0, 0.5))
    found, text = answered(group_of(results))
    assert found.outcome == "nobody"
    assert text.startswith("None of ddp and ist reached accuracy 0.8 within 30 epochs, measured on laptop.")
    assert "The best final accuracy is that of ist on 2 nodes, 0.750." in text


def test_a_minority_of_seeds_is_named(results):
    for seed, value in enumerate([0.9, 0.5, 0.5]):
        write_run(results, header("ist", seed=seed), ramp(9.0, value))
    assert "apart from 1 of 3 seeds of ist on 2 nodes" in answered(group_of(results))[1]


def write_minority(results, nodes, earliest):
    """ddp in 10 s, 11 s and a miss; local_sgd in `earliest` and two misses."""
    for seed, (ddp, local_sgd) in enumerate(((10.0, earliest), (11.0, None), (None, None))):
        for method, seconds, on in (("ddp", ddp, 2), ("local_sgd", local_sgd, nodes)):
            events = ramp(9 / 8 * seconds) if seconds else ramp(30.0, 0.5)
            write_run(results, header(method, seed=seed, nodes=on), events)


def test_a_minority_of_seeds_that_is_as_early_makes_it_too_close_to_call(results):
    write_minority(results, 2, 3.0)
    found, text = answered(group_of(results))
    assert found.outcome == "close"
    assert text.startswith(
        "Too close to call of ddp and local_sgd: to accuracy 0.8, ddp on 2 nodes takes 11.0 s [10.0–∞], local_sgd "
        "on 2 nodes more than 30.0 s [3.00–∞], measured on laptop. Their ranges over seeds overlap. Only 1 of 3 "
        "seeds of local_sgd on 2 nodes reached it. Cost to the target: ddp on 2 nodes 1.78 MB sent per node."
    )


def test_a_minority_of_seeds_on_one_machine_may_be_enough(results):
    write_minority(results, 1, 3.0)
    said = ": local_sgd on 1 node takes more than 30.0 s [3.00–∞]."
    assert f"One machine may be enough, it is too close to call{said}" in lead(results)


def test_a_late_minority_of_seeds_is_named_beside_the_first(results):
    for seed in range(3):
        write_run(results, header("ddp", seed=seed), ramp(9.0))
        write_run(results, header("ist", seed=seed), ramp(20.0, 0.5 if seed else 0.9))
    found, text = answered(group_of(results))
    assert found.outcome == "first"
    assert "No other method did, apart from 1 of 3 seeds of ist on 2 nodes." in text


@pytest.mark.parametrize(("others", "words"), [((), "No other method ran."), (("ddp",), "No other method did.")])
def test_the_only_method_has_no_next(results, others, words):
    write_run(results, header("ist"), ramp(9.0))
    for method in others:
        write_run(results, header(method), ramp(9.0, 0.5))
    found, text = answered(group_of(results))
    assert found.outcome == "first"
    assert words in text
    assert "One seed each, so no spread is known." in text


def test_a_replay_names_its_error_and_a_lead_below_it_is_too_close(results):
    write_pair(results)
    slow, even = sweep_of(results, 8e6, 3.6e8).groups
    found, text = answered(slow)
    assert found.outcome == "first"
    assert "Replayed on " in text
    assert f"ddp by up to {abs(known_checks()['ddp'].largest):.1%}" in text
    assert "in the median" not in text
    cost = next(line for line in found.verdict if line.startswith("Cost to the target: "))
    assert " 1.78 MB sent per node and $" in cost  # 2 MB in the whole run
    found, text = answered(even)  # 3.22 s and 3.22 s
    assert found.outcome == "close"


def lead(results):
    return answered(group_of(results))[0].lead


def test_one_machine_that_is_first_is_enough(results):
    for nodes, seconds in ((1, 9.0), (2, 27.0)):
        write_run(results, header("ddp", nodes=nodes), ramp(seconds))
    write_run(results, header("ist"), ramp(18.0))
    assert lead(results)[0].startswith(
        "One machine is enough: ddp on 1 node is the first of ddp and ist on 1 and 2 nodes to reach accuracy 0.8, "
        "in 8.00 s"
    )


@pytest.mark.parametrize(
    ("alone", "said"),
    [
        ((27.0, 30.0), "One machine, ddp on 1 node, takes 25.3 s [24.0–26.7], 2.75 times as long."),
        ((), "One machine does not reach it: ddp on 1 node, 0 of 2 seeds."),
        (
            (10.0, 12.0),
            "One machine may be enough, it is too close to call: ddp on 1 node takes 9.78 s [8.89–10.7].",
        ),
        ((8.0, 13.0), "One machine may be enough: no row on more nodes is clearly faster."),
    ],
)
def test_one_machine_is_said_beside_the_first_method(results, alone, said):
    for seed, seconds in enumerate((9.0, 12.0)):
        write_run(results, header("ddp", seed=seed), ramp(seconds))
        write_run(results, header("ddp", nodes=1, seed=seed), ramp(alone[seed]) if alone else ramp(seconds, 0.5))
    assert said in lead(results)


def test_many_rows_are_a_number_in_the_sentence(results):
    for number in range(8):
        head = header("ist")
        head["cell"] = f"speech-ist-{number}"
        head["method_label"] = f"ist local_steps={number}"
        head["config"]["method_options"] = {"local_steps": number}
        write_run(results, head, ramp(9.0 + number))
    assert "is the first of 8 rows to reach accuracy 0.8, in 8.00 s" in lead(results)[0]


def test_the_first_lines_name_each_clock_and_say_the_same_doubts_once(results):
    write_pair(results)
    report = build_report(results, cluster=load_profile("m5.2xlarge"))
    measured, replayed = answer_lines(by_study(report.groups))
    assert ", measured on laptop" in measured
    assert ", replayed on m5.2xlarge" in replayed
    assert "Not sure: one seed; untuned; without diloco." in measured
    assert "Not sure" not in replayed  # for the same reasons


def test_answers_on_one_workload_say_what_tells_them_apart(results):
    for budget, workload in (("24 steps", "speech"), ("66 steps", "speech"), ("9 steps", "toy")):
        head = header("ddp", workload=workload, budget=budget, cell=budget.replace(" ", "-"))
        write_run(results, head, ramp(9.0))
    starts = [line.partition(":")[0] for line in answer_lines(by_study(build_report(results).groups))]
    assert starts == ["speech, 24 steps, batch size 128", "speech, 66 steps, batch size 128", "toy"]


def test_each_study_says_its_doubts(results):
    for workload in ("speech", "toy"):
        for method, seconds in (("ist", 9.0), ("ddp", 27.0)):
            write_run(results, header(method, workload=workload, cell=f"{workload}-{method}"), ramp(seconds))
    lines = answer_lines(by_study(build_report(results).groups))
    assert ["Not sure: one seed" in line for line in lines] == [True, True]


def test_without_a_finished_run_the_first_line_says_so(results):
    write_run(results, header("ddp", status="failed"), ramp(9.0)[:1])
    (line,) = answer_lines(by_study(build_report(results).groups))
    assert line == "No run is the first: no run has finished."


def test_controls_alone_have_no_first_method(results):
    subnet = header("ist", status="failed", narrowed={"hidden": 2048})
    subnet["config"]["workload_options"] = {"hidden": 4096}
    write_run(results, subnet, ramp(9.0)[:1])
    for method, status in (("ddp", "failed"), ("ddp", "done")):
        width = 2048 if status == "done" else 4096
        head = header(method, status=status, cell=f"speech-{method}-{width}")
        head["config"]["workload_options"] = {"hidden": width}
        head["workload_label"] = "speech" if width == 4096 else f"speech hidden={width}"
        write_run(results, head, ramp(9.0) if status == "done" else ramp(9.0)[:1])
    group = group_of(results)
    assert group.contenders
    assert not group.competing
    found, text = answered(group)
    assert found.outcome == "nobody"
    assert text.startswith("Only controls have finished, so no method is the first to accuracy 0.8.")


def test_of_like_doubts_the_worst_is_said():
    like = [f"the machine's speed changed by {times} times" for times in ("1.4", "10.2", "9.1")]
    assert list(_worst([*like, "one of a kind"])) == [like[1], "one of a kind"]
