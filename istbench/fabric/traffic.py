"""Counts of what crosses the network."""

from dataclasses import dataclass


@dataclass
class Traffic:
    """Bytes of payload this node sent and received."""

    sent: int = 0
    received: int = 0
