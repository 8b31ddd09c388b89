"""Point-to-point messages in the background, the most urgent first."""

from istbench.fabric.transport.link import TransportMessage, payload_of
from istbench.fabric.transport.transport import Receiver, Traffic, Transport

__all__ = ["Receiver", "Traffic", "Transport", "TransportMessage", "payload_of"]
