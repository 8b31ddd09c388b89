"""The nodes of a run that loses some and gets them back (`--elastic`). It starts nothing and reads no clock."""

from istbench.base.options.run import RunConfig

BACK_S = 10.0
"""Seconds after which a lost worker of this machine counts as a node that is back."""


class Members:
    """At most `most` nodes, of which a run needs `least`; without `--elastic` these are equal.

    A lost node is back after `back_s` seconds. It joins when the run begins again: after another loss, or at the
    next evaluation, where the run then stops with a checkpoint.
    """

    def __init__(self, least: int, most: int, back_s: float) -> None:
        self._least, self._most, self._back_s = least, most, back_s
        self._returns: list[float] = []  # of each lost node, when it is back

    @classmethod
    def of(cls, config: RunConfig) -> "Members":
        """The nodes of a run with `config`, all present."""
        elastic = config.elastic
        return cls(config.nodes if elastic is None else elastic.least, config.nodes, BACK_S)

    @property
    def nodes(self) -> int:
        """The number of nodes that are present."""
        return self._most - len(self._returns)

    @property
    def back_at(self) -> float | None:
        """The time from which the group can grow; None if no node is lost."""
        return min(self._returns, default=None)

    def lose(self, count: int, now: float) -> None:
        """Lose `count` nodes now; none in a run whose number of nodes stays."""
        if self._least < self._most:
            self._returns += [now + self._back_s] * min(count, self.nodes)

    def seconds_short(self, now: float) -> float:
        """The seconds until enough nodes are present."""
        missing = self._least - self.nodes
        return max(0.0, sorted(self._returns)[missing - 1] - now) if missing > 0 else 0.0

    def take_back(self, now: float) -> None:
        """Let the nodes join that are back."""
        self._returns = [at for at in self._returns if at > now]
