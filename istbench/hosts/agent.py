"""The type of the program on a host that answers questions, as the actions see it."""

from collections.abc import Callable
from typing import Any, Protocol


class Agent(Protocol):
    """The answering program; `agent_program` has it, and needs no istbench on the host.

    Attributes:
        undo: The agent calls these functions when it ends.
    """

    undo: list[Callable[[], None]]

    def say(self, frame: dict[str, Any], content: bytes = b"") -> None:
        """Send one frame, and the bytes after it."""
