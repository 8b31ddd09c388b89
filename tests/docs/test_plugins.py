"""The method in the documentation works as written."""

import re
from pathlib import Path

import pytest
from fake_runs import evaluation, header, write_run

from istbench.methods.size_plans import SIZE_PLANS
from istbench.node import destinations as sinks
from istbench.plan.estimate import estimate
from istbench.plan.numbers import Numbers
from istbench.plan.script_time import chosen_methods
from istbench.studies.conformance.check import check_method, check_workload
from istbench.workloads.base import Workload

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


def test_the_documented_method_keeps_the_contract_in_forty_lines(tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    assert sum(bool(line) for line in code.splitlines()) <= 40
    plugin = tmp_path / "gossip.py"
    plugin.write_text(code)
    outcomes = check_method("gossip", nodes=3, plugins=(str(plugin),))
    assert [outcome.outcome for outcome in outcomes] == ["holds"] * 6, outcomes


def test_the_documented_workload_keeps_the_contract_with_six_functions(tmp_path):
    code = re.search(r"## A workload.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    assert len(re.findall(r"    def [a-z]", code)) == len(Workload.__abstractmethods__) == 6
    plugin = tmp_path / "sums.py"
    plugin.write_text(code)
    outcomes = check_workload("sums", plugins=(str(plugin),))
    assert {outcome.outcome for outcome in outcomes} == {"holds"}, outcomes


def test_the_documented_size_plan_gives_a_row(monkeypatch):
    made = {}
    exec(re.search(r"`SizePlan`.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1), made)
    monkeypatch.setitem(SIZE_PLANS, "gossip", made["GOSSIP"])
    numbers = Numbers(parameters=10_000_000, step_s=0.1, nodes=4, bandwidth=1e9)
    (row,) = estimate(numbers, chosen_methods(["gossip"])).rows
    assert row.step_s == pytest.approx(0.1 + 8 * 40e6 / 1e9, rel=0.1)


def test_the_documented_sink_gets_the_evaluations_and_the_end(results, monkeypatch):
    made = {}
    exec(re.search(r"## A sink.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1), made)
    monkeypatch.setattr(sinks, "load_sink", lambda text: made["Lines"])
    run = write_run(results, header(status="running"), [])
    with sinks.Destinations([sinks.RequestedSink("lines", run)]) as fed:
        fed.record(evaluation(10, 1.0, 0.5))
    first, last = (results / "lines" / f"{run.path.name}.txt").read_text().splitlines()
    assert first.startswith("10 {'accuracy': 0.5, ")
    assert last == "interrupted"
