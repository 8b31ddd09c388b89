"""Point-to-point messages in the background, the most urgent first."""

from istbench.fabric.transport.link import Message
from istbench.fabric.transport.payload import payload_of
from istbench.fabric.transport.transport import Receiver, Transport

__all__ = ["Message", "Receiver", "Transport", "payload_of"]
