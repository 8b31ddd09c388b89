"""The type of an action: a request of a connection that the agent on a host fulfils."""

from collections.abc import Callable
from typing import Any, Protocol


class Agent(Protocol):
    """The part of the agent that actions use.

    Attributes:
        undo: functions to call when the connection ends.
    """

    undo: list[Callable[[], None]]

    def say(self, frame: dict[str, Any]) -> None:
        """Send a message that answers no request."""


Action = Callable[[Agent, dict[str, Any]], Any]
"""Takes the arguments of a request; returns bytes, or a value for JSON. An error is its answer as well."""
