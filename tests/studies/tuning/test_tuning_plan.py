"""The plan of a tuning: equal budgets for all methods, and methods without anything to tune."""

import msgspec
import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.studies.tuning.plan import plan_trials
from istbench.studies.tuning.ranges import given_ranges

METHODS = ("ist", "ddp", "diloco")
SHARED = RunRequest(method="ist", workload="toy", steps=8, held_out=0.2, seed=3)

UNTUNABLE = """
from dataclasses import dataclass
from istbench.methods.ist import IndependentSubnetTraining

class Plain(IndependentSubnetTraining):
    name = "plain"

    @dataclass(frozen=True, kw_only=True)
    class Options:
        pulls: int = 3

    @classmethod
    def check(cls, options, model, workload, world_size):
        pass
"""


def planned(*methods, ranges=(), fixed=None, shared=SHARED, by_seconds=False, trials=4, nodes=(2, 4)):
    wanted = {name: fixed or {} for name in methods}
    return plan_trials(wanted, shared, given_ranges(ranges), nodes=nodes, trials=trials, by_seconds=by_seconds)


def test_every_method_has_the_same_number_of_trials_of_the_same_budget():
    requests = planned(*METHODS).requests((2, 4), SHARED)
    assert len(requests) == 3 * 2 * 4
    for nodes in (2, 4):
        for method in METHODS:
            own = [request for request in requests if (request.method, request.nodes) == (method, nodes)]
            assert len({tuple(request.method_options.items()) for request in own}) == 4
    for request in requests:
        alike = msgspec.structs.replace(request, method="ist", nodes=SHARED.nodes, method_options={})
        assert alike == SHARED


def test_an_interrupted_tuning_has_tried_all_methods_alike():
    requests = planned(*METHODS).requests((2, 4), SHARED)
    for trial in range(4):
        part = requests[6 * trial : 6 * trial + 6]
        assert {(request.method, request.nodes) for request in part} == {(m, n) for m in METHODS for n in (2, 4)}


def test_methods_tune_their_own_options_and_rounds_only_by_seconds():
    def names(by_seconds):
        return {
            method: [own.name for own in found]
            for method, found in planned(*METHODS, by_seconds=by_seconds).ranges.items()
        }

    assert names(False) == {"ist": ["lr"], "ddp": ["lr"], "diloco": ["lr", "outer_lr", "outer_momentum"]}
    assert names(True) == {
        "ist": ["lr", "local_steps"],
        "ddp": ["lr", "accumulate"],
        "diloco": ["lr", "local_steps", "outer_lr", "outer_momentum"],
    }


def test_a_method_without_ranges_needs_one_from_the_user(tmp_path):
    plugin = tmp_path / "plain.py"
    plugin.write_text(UNTUNABLE)
    shared = msgspec.structs.replace(SHARED, plugins=(str(plugin),))
    with pytest.raises(UserError, match="'plain' has nothing to tune here: give a range"):
        planned("plain", "ddp", shared=shared)
    found = planned("plain", "ddp", shared=shared, ranges=("pulls=1:9",))
    assert found.trials["plain"][0].settings == {"pulls": 3}
    assert len(found.trials["plain"]) == len(found.trials["ddp"]) == 4


def test_points_that_the_method_refuses_on_these_nodes_are_passed_over():
    def coverages(nodes):
        plan = planned("ist", ranges=("coverage=1:4",), nodes=nodes, trials=12)
        return {trial.options.get("coverage", 1) for trial in plan.trials["ist"]}

    assert coverages((2, 4)) == {1, 2}
    assert coverages((4,)) == {1, 2, 3, 4}


def test_a_range_of_a_fixed_option_is_refused():
    with pytest.raises(UserError, match="--range lr: --set gives it a value"):
        planned("ddp", ranges=("lr=1:2",), fixed={"lr": "0.1"})
