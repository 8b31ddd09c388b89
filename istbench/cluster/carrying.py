"""What carrying a message costs a node."""

import msgspec


class Carrying(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of carrying messages.

    Attributes:
        message_s: from when a message is sent until it is received, where it has nothing to carry, seconds.
        next_s: until the next one can follow it, where more are waiting, seconds.
        cpu_s_per_message, cpu_s_per_byte: seconds of one core to send or to receive one.
    """

    message_s: float
    next_s: float
    cpu_s_per_message: float
    cpu_s_per_byte: float

    def __str__(self) -> str:
        return (
            f"{self.message_s * 1e6:.0f} us a message, {self.next_s * 1e6:.0f} us until the next, of a core "
            f"{self.cpu_s_per_message * 1e6:.0f} us a message and {self.cpu_s_per_byte * 1e9:.2f} ns a byte"
        )
