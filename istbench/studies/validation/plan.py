"""The runs of a validation: which methods on which workload, for how many steps, and how long all of it takes."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from istbench.base.errors import UserError
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.node.registry import build_method, plugin_names, registered
from istbench.workloads.base import Progress

# A segment ends with an evaluation. The first one warms up: links fill their buckets and connections their windows.
SEGMENTS = 3
_LEAST_ROUNDS, _LEAST_STEPS = 2, 10
_MOST_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """The steps of a run: a segment to warm up, and then the measured segments, all of whole rounds."""

    segment_rounds: int
    round_steps: int

    @property
    def segment_steps(self) -> int:
        """Local steps of a node in a segment."""
        return self.segment_rounds * self.round_steps

    @property
    def steps(self) -> int:
        """Local steps of a node in the measured segments."""
        return SEGMENTS * self.segment_steps

    @property
    def recorded_steps(self) -> int:
        """Local steps that a trace can have: a trace begins after the first round."""
        return self.segment_steps + self.steps - self.round_steps

    def fit(self, request: RunRequest) -> RunRequest:
        """`request` with these steps."""
        every = Interval(steps=self.segment_steps)
        return msgspec.structs.replace(request, steps=self.steps + self.segment_steps, eval_every=every)


def measured_rounds(round_s: float, round_steps: int, seconds: float) -> MeasuredSteps:
    """The rounds of `round_s` seconds each that take about `seconds`, and not much longer if rounds are long."""
    rounds = math.ceil(seconds / SEGMENTS / max(round_s, 1e-6))
    most = max(1, _MOST_STEPS // (SEGMENTS * round_steps))
    return MeasuredSteps(segment_rounds=max(1, min(rounds, most)), round_steps=round_steps)


def rehearsed(round_steps: int) -> MeasuredSteps:
    """The rounds of a rehearsal: at least two, and ten local steps, in each segment."""
    rounds = max(_LEAST_ROUNDS, -(-_LEAST_STEPS // round_steps))
    return MeasuredSteps(segment_rounds=rounds, round_steps=round_steps)


def round_steps_of(request: RunRequest, progress: Progress) -> int:
    """Local steps of a round of `request`.

    Raises:
        UserError: if the cell cannot run.
    """
    config = prepare_cell(msgspec.structs.replace(request, steps=1), progress).config
    method = build_method(config.method, config.method_options, seed=config.seed, plugins=config.plugins)
    return method.round_steps


def all_methods(plugins: Sequence[str]) -> list[str]:
    """The names of all registered methods, and of those in the files `plugins`."""
    names = [known.name for known in registered("methods")]
    return list(
        dict.fromkeys([*names, *(name for path in plugins for name in plugin_names(Path(path), "methods"))])
    )


def fitting(candidates: Sequence[RunRequest], progress: Progress, named: Collection[str] = ()) -> list[RunRequest]:
    """Of the `candidates`, the first of each method and number of nodes that can run.

    Raises:
        UserError: if none of them can run, or a method among `named` cannot, with the reason for its first one.
    """
    found: dict[tuple[str, int], RunRequest] = {}
    refusals: dict[str, UserError] = {}
    for request in candidates:
        if (request.method, request.nodes) in found:
            continue
        try:
            prepare_cell(msgspec.structs.replace(request, steps=1), progress)
        except UserError as error:
            refusals.setdefault(request.method, error)
            continue
        found[request.method, request.nodes] = request
    fit = {method for method, _ in found}
    refused = [error for method, error in refusals.items() if method not in fit and (method in named or not fit)]
    if refused:
        raise refused[0]
    return list(found.values())
