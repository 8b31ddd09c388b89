"""Ports for programs that are told one before they listen."""

import secrets
import socket
from contextlib import suppress


def free_port():
    """A port of the loopback interface that no other program is given meanwhile: systems hand out higher ones."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
