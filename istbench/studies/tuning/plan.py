"""The plan of `istbench tune`: the ranges and the trials of each method, and a request for each cell."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.methods.optimizer import OF_RULES
from istbench.node.registry import build_method, build_workload
from istbench.studies.tuning.ranges import GivenRange, Range, check_known, ranges_of
from istbench.studies.tuning.trials import Trial, trials_of
from istbench.workloads.contract import blank_model

_GIVE_RANGE = "give a range, such as --range lr=0.001:1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ranges and the trials of each method, equally many, in the order of the command."""

    ranges: Mapping[str, Sequence[Range]]
    trials: Mapping[str, Sequence[Trial]]

    def requests(self, nodes: Sequence[int], shared: RunRequest) -> list[RunRequest]:
        """The cells, one trial of all methods after the other: an interrupted tuning has tried all of them alike.

        shared: a request with the fields that all cells have.
        """
        return [
            msgspec.structs.replace(shared, method=trial.method, method_options=trial.options, nodes=count)
            for same_number in zip(*self.trials.values(), strict=True)
            for count in nodes
            for trial in same_number
        ]


def plan_trials(
    methods: Mapping[str, Mapping[str, Any]],
    shared: RunRequest,
    given: Mapping[str, GivenRange],
    *,
    nodes: Sequence[int],
    trials: int,
    by_seconds: bool,
) -> Plan:
    """The plan for `methods`, each with the options that the user fixed.

    Args:
        shared: workload, seed and plug-ins of all cells. given: the user's ranges, by option.
        nodes: the numbers of nodes. trials: of each method on each of them. by_seconds: whether seconds judge them.

    Raises:
        UserError: for an unknown name, a wrong range, or a method without anything to tune.
    """
    workload = build_workload(shared.workload, shared.workload_options, shared.plugins)
    # Data may set the size of the model; then only the run can tell whether a method refuses it.
    sized = shared.data is not None and workload.sized_by_data
    model = None if sized else blank_model(workload, data_known=False)

    def options_of(name: str, given: Mapping[str, Any]) -> Any:
        """The options of method `name`, which it accepts for the model on each of `nodes`."""
        method = build_method(name, given, workload=workload, plugins=shared.plugins)
        if model is not None:
            for count in nodes:
                method.check(method.options, model, workload, count)
        return method.options

    defaults = {name: options_of(name, fixed) for name, fixed in methods.items()}
    check_known(given, {name: {field.name for field in dataclasses.fields(own)} for name, own in defaults.items()})
    ranges: dict[str, list[Range]] = {}
    for name, fixed in methods.items():
        twice = [option for option in fixed if option in given]
        if twice:
            raise UserError(f"--range {twice[0]}: --set gives it a value; leave one of the two out")
        # A task file with an optimizer of its own sets that optimizer's options itself.
        left_out = {*fixed, *(OF_RULES if workload.optimizer else ())}
        ranges[name] = ranges_of(name, defaults[name], given, left_out=left_out, by_seconds=by_seconds)
        if not ranges[name]:
            own = f"{workload.name} has an optimizer of its own; give a --range of another option"
            way_out = "take one --set out" if fixed else own if workload.optimizer else _GIVE_RANGE
            raise UserError(f"method {name!r} has nothing to tune here: {way_out}, or leave the method out")
    found = {
        name: trials_of(name, ranges[name], trials, shared.seed, partial(options_of, name), fixed)
        for name, fixed in methods.items()
    }
    return Plan(ranges=ranges, trials=found)
