"""The sentences on top of a page."""

import pytest
from fake_clusters import sweep_of, write_pair
from fake_runs import header, ramp, write_run
from read_tables import group_of

from istbench.cluster.replay_checks import known_checks
from istbench.report.answer import answer


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
        "ist on 2 nodes reaches accuracy 0.8 first, in 8.89 s [8.00–9.78]; 3 of 3 seeds reached it. "
        "Next, ddp on 2 nodes takes 26.7 s [24.0–29.3], 3.00 times as long."
    )
    assert "it is 3.00 times [3.00–3.00] as fast as ddp on as many nodes" in text
    assert "Cost to the target: ist on 2 nodes 1.78 MB sent per node; ddp on 2 nodes 1.78 MB sent" in text
    assert "Measured on laptop (8 cores, cpu)." in text
    assert "SYNTHETIC" in text
    assert "say nothing about the real dataset" in text


def test_unequal_trials_are_said_beside_the_answer(results):
    for method, trials in (("ddp", None), ("ist", 20)):
        head = header(method)
        head["config"] |= {"tuned": trials} if trials else {}
        write_run(results, head, ramp(9.0 if trials else 27.0))
    said = "Tuned unequally, by trials: none for ddp on 2 nodes; 20 for ist on 2 nodes."
    assert said in answered(group_of(results))[0].basis


def test_overlapping_ranges_are_too_close_to_call(results):
    for seed in range(2):
        write_run(results, header("ist", seed=seed), ramp(9.0 + 2 * seed))
        write_run(results, header("ddp", seed=seed), ramp(10.0 + 2 * seed))
    found, text = answered(group_of(results))
    assert found.outcome == "close"
    assert found.verdict[0].startswith("Too close to call: to accuracy 0.8, ist on 2 nodes takes 8.89 s")
    assert "Their ranges over seeds overlap." in text


def test_nobody_reached_it(results):
    write_run(results, header("ist"), ramp(9.0, 0.75))
    write_run(results, header("ddp"), ramp(9.0, 0.5))
    found, text = answered(group_of(results))
    assert found.outcome == "nobody"
    assert text.startswith("Nobody reached accuracy 0.8 within 30 epochs.")
    assert "The best final accuracy is that of ist on 2 nodes, 0.750." in text


def test_a_minority_of_seeds_is_named(results):
    for seed, value in enumerate([0.9, 0.5, 0.5]):
        write_run(results, header("ist", seed=seed), ramp(9.0, value))
    assert "apart from 1 of 3 seeds of ist on 2 nodes" in answered(group_of(results))[1]


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
    assert f"ddp by {known_checks()['ddp'].median:.1%} in the median" in text
    cost = next(line for line in found.verdict if line.startswith("Cost to the target: "))
    assert " 1.78 MB sent per node and $" in cost  # 2 MB in the whole run
    found, text = answered(even)  # 3.22 s and 3.22 s
    assert found.outcome == "close"


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
