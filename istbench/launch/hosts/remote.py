"""The actions of `agent_program` on a host that has istbench, by name."""

from istbench.launch.hosts import (
    remote_cells,
    remote_detached,
    remote_files,
    remote_links,
    remote_run,
    remote_speed,
    trees,
)
from istbench.launch.hosts.action import Action

ACTIONS: dict[str, Action] = {
    "listen": remote_links.listen,
    "stop_listening": remote_links.stop_listening,
    "try_connections": remote_links.try_connections,
    "latency": remote_links.latency,
    "bandwidth": remote_links.bandwidth,
    "speed": remote_speed.speed,
    "source_key": remote_cells.source_key_there,
    "name_cells": remote_cells.name_cells,
    "start": remote_run.start,
    "train": remote_run.train,
    "end": remote_run.end,
    "how_far": remote_files.how_far_there,
    "offer": remote_files.offer,
    "read": remote_files.read,
    "clear": remote_files.clear_away,
    "write": remote_files.write,
    "place": remote_files.place_there,
    "has_detached": remote_detached.has_detached,
    "start_detached": remote_detached.start_detached,
    "follow_detached": remote_detached.follow_detached,
    "stop_detached": remote_detached.stop_detached,
    "take_detached": remote_detached.take_detached,
    "digest_there": trees.digest_there,
    "list_there": trees.list_there,
    "expect_tree": trees.expect_tree,
    "write_pieces": trees.write_pieces,
    "finish_tree": trees.finish_tree,
    "delete_tree": trees.delete_tree,
}
