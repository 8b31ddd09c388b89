"""The same runs on one cluster over links of several bandwidths."""

import dataclasses
from dataclasses import dataclass

from istbench.report.groups import Group
from istbench.results.stats import Estimate, estimate


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The same runs on one cluster at several bandwidths.

    cluster: its name without a bandwidth. groups: the runs on each of its bandwidths, rising.
    """

    cluster: str
    groups: tuple[Group, ...]

    @property
    def bandwidths(self) -> tuple[float, ...]:
        """Bandwidths of a node's link, bits/s, rising."""
        return tuple(group.profile.bandwidth_out for group in self.groups if group.profile is not None)

    @property
    def stem(self) -> str:
        """A file name that no other sweep has."""
        first = self.groups[0]
        assert first.profile is not None
        one = dataclasses.replace(first, profile=dataclasses.replace(first.profile, name=self.cluster))
        return f"{one.stem}-by-bandwidth"

    def labels(self, nodes: int) -> list[str]:
        """The methods on so many nodes, in the order of the table."""
        return [contender.label for contender in self.groups[0].contenders if contender.nodes == nodes]

    def times(self, label: str, nodes: int, level: float) -> list[Estimate]:
        """Seconds to `level` at each bandwidth."""
        return [
            estimate(list(contender.seconds(level).values()))
            for group in self.groups
            for contender in group.contenders
            if (contender.label, contender.nodes) == (label, nodes)
        ]
