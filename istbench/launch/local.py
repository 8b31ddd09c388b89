"""n workers on this machine, through the elastic agent that torchrun runs."""

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from istbench.launch.failures import describe
from istbench.launch.place import Place, ThisMachine

# The fork server starts importing torch while this process does the same; every worker is then a fork of it.
multiprocessing.set_forkserver_preload(["istbench.launch.preload"])

_SHUTDOWN_S = 5
_server_output = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the fork server is)


def preload() -> None:
    """Start importing, in the background, what workers need. Call it from the main thread."""
    from multiprocessing.forkserver import ensure_running

    # Started with SIGINT ignored and its own standard error, the fork server does not answer an early Ctrl-C with
    # tracebacks; nor does a worker whose launcher went away before its output was redirected.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminal = os.dup(2)
    try:
        os.dup2(_server_output.fileno(), 2)
        ensure_running()
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        signal.signal(signal.SIGINT, before)


def launch(
    target: Callable[..., None],
    args: tuple[object, ...],
    *,
    nodes: int,
    logs: Path,
    threads: int,
    place: Place | None = None,
) -> None:
    """Run `target(*args)` in `nodes` processes joined by a rendezvous; returns when all have ended well.

    Each process has RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, and its output in `logs`.
    `place` is where they live, by default the loopback interface.

    Raises:
        UserError: where a worker raised one.
        RunFailed: where a worker died, naming it and its last lines.
        KeyboardInterrupt: after SIGINT or SIGTERM, with all workers ended.
    """
    from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std

    from istbench.launch.guard import guarded
    from istbench.launch.rendezvous import StoreRendezvous

    for name in ("torch.distributed", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    preload()
    place = place or ThisMachine()
    _clear(logs)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        with place.built():
            agent = LocalElasticAgent(
                WorkerSpec(
                    role="node",
                    local_world_size=nodes,
                    entrypoint=guarded,
                    args=(target, args, str(logs), os.getpid(), place),
                    rdzv_handler=StoreRendezvous(place),
                    max_restarts=0,
                    monitor_interval=0.1,
                ),
                logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
                start_method="forkserver",
                shutdown_timeout=_SHUTDOWN_S,
            )
            result = agent.run()
    except SignalException as stop:
        raise KeyboardInterrupt(signal.Signals(stop.sigval).name) from None
    if result.state != WorkerState.SUCCEEDED:
        raise describe(result.failures, logs, _early_output())


def _early_output() -> str:
    """What the fork server, and workers before their output was redirected, said."""
    _server_output.seek(0)
    return _server_output.read().decode(errors="replace")


def _clear(logs: Path) -> None:
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True, exist_ok=True)
