"""The actions of `agent_program` on a host that has istbench, by name."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from istbench.launch.hosts import push, remote_detached, remote_files, remote_links, remote_programs, remote_run
from istbench.launch.hosts.agent_program import Agent

ACTIONS: dict[str, Callable[[Agent, dict[str, Any]], Any]] = {
    "listen": remote_links.listen,
    "stop_listening": remote_links.stop_listening,
    "try_connections": remote_links.try_connections,
    "latency": remote_links.latency,
    "bandwidth": remote_links.bandwidth,
    "run_programs": remote_programs.run_programs,
    "source_key": lambda _agent, _question: remote_programs.source_key(),
    "start": remote_run.start,
    "mark": remote_run.mark,
    "end": remote_run.end,
    "how_far": remote_files.how_far_there,
    "list_run": remote_files.list_run,
    "read": remote_files.read,
    "clear": lambda _agent, question: remote_files.clear(Path(question["path"])),
    "write": remote_files.write,
    "place": lambda _agent, question: remote_files.place(Path(question["path"])),
    "has_detached": lambda _agent, question: remote_detached.job_of(question["key"]) is not None,
    "start_detached": remote_detached.start_detached,
    "follow_detached": remote_detached.follow_detached,
    "stop_detached": remote_detached.stop_detached,
    "take_detached": remote_detached.take_detached,
    "digest_tree": push.digest_there,
    "list_tree": lambda _agent, question: push.list_tree(Path(question["path"])),
    "expect_tree": push.expect_tree,
    "finish_tree": push.finish_tree,
    "delete_tree": lambda _agent, question: shutil.rmtree(question["path"], ignore_errors=True),
}
