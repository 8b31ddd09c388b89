"""The effort of measurements of machines and messages."""

from dataclasses import dataclass


@dataclass
class Effort:
    """Measurements with less effort take less time, and their figures spread more.

    Attributes:
        kernel_s: seconds for the calls of a kernel, which are three at least.
        array: float32 values of an array beyond the caches. gathered: rows that are copied in random order.
        repeats: measurements in turn, where a trace has the means of few ranks, and of a recorded script.
        in_a_row, after_computing, beside_computing: small operations of a way of messages that follow each other,
            that follow computing, and beside a step. rounds: of these.
        width: of the layer in that step, whose weights and gradients are larger than most caches.
    """

    kernel_s: float = 0.02
    array: int = 1 << 23
    gathered: int = 1 << 14
    repeats: int = 3
    in_a_row: int = 100
    after_computing: int = 30
    beside_computing: int = 8
    rounds: int = 3
    width: int = 2048


EFFORT = Effort()
"""The effort of this process. The tests lower it."""
