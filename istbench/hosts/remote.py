"""What `agent_program` does for whoever asks on a host that has istbench: its actions, by name."""

from collections.abc import Callable
from typing import Any

from istbench.hosts.agent import Agent
from istbench.hosts.remote_cells import name_cells, usable_cores
from istbench.hosts.remote_files import clear_away, keep, offer, read, standing, write
from istbench.hosts.remote_links import bandwidth, latency, listen, reach, stop_listening
from istbench.hosts.remote_run import end, go, start
from istbench.hosts.remote_speed import speed

ACTIONS: dict[str, Callable[[Agent, dict[str, Any]], Any]] = {
    "listen": listen,
    "stop_listening": stop_listening,
    "reach": reach,
    "latency": latency,
    "bandwidth": bandwidth,
    "speed": speed,
    "usable_cores": usable_cores,
    "name_cells": name_cells,
    "start": start,
    "go": go,
    "end": end,
    "standing": standing,
    "offer": offer,
    "read": read,
    "clear": clear_away,
    "write": write,
    "keep": keep,
}
