"""Errors of replays: their seconds compared with the same training on shaped links."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from istbench.base.options.texts import Text
from istbench.cluster.profile import MessageCosts
from istbench.cluster.replay_checks import Measurement


class ReplayError(Measurement, frozen=True, kw_only=True):
    """One measurement: local steps of a method, timed on shaped links and replayed.

    Attributes:
        repeat: number of the repetition, from 0. steps: local steps of a node in `measured_s`.
        recorded_elsewhere_s: seconds of a replayed trace of another run, on the loopback interface. They include
            the change of the machine's speed between the two runs.
        scale: seconds of computing in the replay for one recorded second.
        dilation: the factor by which the lab slows down computing and links.
        data: the training data. doubt: a reason to distrust the seconds in the traces; may be empty.
        carrying: cost of the run's messages, measured before in the same lab; None without links.
    """

    repeat: int
    steps: int = 0
    recorded_elsewhere_s: float
    scale: float = 1.0
    dilation: float
    data: Text
    doubt: Text
    carrying: MessageCosts | None

    @property
    def error_recorded_elsewhere(self) -> float:
        """The error of the trace recorded in another run."""
        return self.recorded_elsewhere_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        errors = {"error": self.error, "error_recorded_elsewhere": self.error_recorded_elsewhere}
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | errors


def by_setting(errors: Iterable[ReplayError]) -> list[list[ReplayError]]:
    """The repeats of each setting, from the workload to the environment, in the order of their first."""
    settings: dict[tuple[str, str, int, str, str], list[ReplayError]] = defaultdict(list)
    for error in errors:
        key = error.workload, error.method, error.nodes, error.bandwidth, error.environment
        settings[key].append(error)
    return list(settings.values())


def summary_of(errors: Sequence[float]) -> str:
    """Median and maximum of the absolute errors, and the mean with its sign, in words."""
    sizes = [abs(error) for error in errors]
    return (
        f"median {statistics.median(sizes):.1%}, largest {max(sizes):.1%} without sign; "
        f"mean {statistics.fmean(errors):+.1%}"
    )
