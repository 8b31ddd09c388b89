"""Errors of replays: their seconds compared with the same training on shaped links."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from istbench.cluster.profile import MessageCosts


@dataclass(frozen=True, kw_only=True)
class ReplayError:
    """One measurement: local steps of a method, timed on shaped links and replayed.

    Attributes:
        bandwidth: bandwidth of the links, as the user wrote it.
        measured_s: seconds of the steps on the shaped links.
        replayed_s: seconds of its replayed trace, which holds CPU seconds and message sizes, no waiting.
        recorded_elsewhere_s: seconds of a replayed trace of another run, on the loopback interface. They include
            the change of the machine's speed between the two runs.
        dilation: the factor by which the lab slows down computing and links.
        data: the training data. doubt: a reason to distrust the seconds in the traces; may be empty.
        carrying: cost of the run's messages, measured before in the same lab.
    """

    method: str
    nodes: int
    bandwidth: str
    repeat: int
    measured_s: float
    replayed_s: float
    recorded_elsewhere_s: float
    dilation: float
    data: str
    doubt: str
    carrying: MessageCosts

    @property
    def error(self) -> float:
        """Replayed over measured, less one."""
        return self.replayed_s / self.measured_s - 1

    @property
    def error_recorded_elsewhere(self) -> float:
        """The same of the trace recorded in another run."""
        return self.recorded_elsewhere_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        errors = {"error": self.error, "error_recorded_elsewhere": self.error_recorded_elsewhere}
        return dataclasses.asdict(self) | {"carrying": msgspec.to_builtins(self.carrying)} | errors


def by_setting(errors: Iterable[ReplayError]) -> list[list[ReplayError]]:
    """The repeats of each method, number of nodes and bandwidth, in the order of their first."""
    settings: dict[tuple[str, int, str], list[ReplayError]] = defaultdict(list)
    for error in errors:
        settings[error.method, error.nodes, error.bandwidth].append(error)
    return list(settings.values())


def summary_of(errors: Sequence[float]) -> str:
    """Median and maximum of the absolute errors, and the mean with its sign, in words."""
    sizes = [abs(error) for error in errors]
    return (
        f"median {statistics.median(sizes):.1%}, largest {max(sizes):.1%} without sign; "
        f"mean {statistics.fmean(errors):+.1%}"
    )
