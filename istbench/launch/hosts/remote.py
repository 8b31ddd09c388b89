"""The actions of `agent_program` on a host that has istbench, by name."""

from istbench.launch.hosts.action import Action
from istbench.launch.hosts.remote_cells import name_cells, source_key_there
from istbench.launch.hosts.remote_detached import (
    follow_detached,
    has_detached,
    start_detached,
    stop_detached,
    take_detached,
)
from istbench.launch.hosts.remote_files import clear_away, how_far_there, offer, place_there, read, write
from istbench.launch.hosts.remote_links import bandwidth, latency, listen, reach, stop_listening
from istbench.launch.hosts.remote_run import end, start, train
from istbench.launch.hosts.remote_speed import speed
from istbench.launch.hosts.trees import (
    delete_tree,
    digest_there,
    expect_tree,
    finish_tree,
    list_there,
    write_pieces,
)

ACTIONS: dict[str, Action] = {
    "listen": listen,
    "stop_listening": stop_listening,
    "reach": reach,
    "latency": latency,
    "bandwidth": bandwidth,
    "speed": speed,
    "source_key": source_key_there,
    "name_cells": name_cells,
    "start": start,
    "train": train,
    "end": end,
    "how_far": how_far_there,
    "offer": offer,
    "read": read,
    "clear": clear_away,
    "write": write,
    "place": place_there,
    "start_detached": start_detached,
    "has_detached": has_detached,
    "follow_detached": follow_detached,
    "stop_detached": stop_detached,
    "take_detached": take_detached,
    "digest_there": digest_there,
    "list_there": list_there,
    "expect_tree": expect_tree,
    "write_pieces": write_pieces,
    "finish_tree": finish_tree,
    "delete_tree": delete_tree,
}
