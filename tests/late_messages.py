"""Messages that come late, as on a long link."""

import time
from contextlib import contextmanager

from istbench.fabric import Fabric
from istbench.fabric.transport import Transport


def make_late(fabric, seconds, hold=lambda: None):
    """From now on, each operation of `fabric` and each message of its transport ends `seconds` late.

    Every rank must call this. An operation also lasts until `hold()` returns.
    """
    make_arrivals_late(fabric.transport, seconds)

    @contextmanager
    def operation(name):
        with Fabric._operation(fabric, name):
            yield
            with fabric.recorder.waiting():
                time.sleep(seconds)
                hold()

    fabric._operation = operation


def make_arrivals_late(transport, seconds):
    """From now on, `transport` tells of a message `seconds` after its last byte."""

    def arrived(*message):
        time.sleep(seconds)
        Transport._arrived(transport, *message)

    transport._arrived = arrived
