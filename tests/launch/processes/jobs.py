"""What workers do in the tests of launching: functions of an importable module, as jobs need."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

from istbench.base.errors import UserError
from istbench.launch.processes.launcher import Job, launch
from istbench.launch.processes.local import LocalLauncher
from istbench.node.stopping import END


def write_environment(folder):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    collecting = "collects" if gc.isenabled() else "collects no"
    told = [*(os.environ[name] for name in names), collecting, "garbage"]
    (Path(folder) / os.environ["RANK"]).write_text(" ".join(told))


def write_modules(path):
    Path(path).write_text("\n".join(sys.modules))


def print_and_end(status, log):
    """Print, and end; rank 1 with `status`, and once `log` has what rank 0 printed: that ends rank 0 too."""
    print("said on stdout")
    print("said on stderr", file=sys.stderr)
    if os.environ["RANK"] == "1":
        until = time.monotonic() + 60
        while not (Path(log).exists() and Path(log).stat().st_size) and time.monotonic() < until:
            time.sleep(0.01)
        sys.exit(status)


def raise_on_rank_1(message):
    if os.environ["RANK"] == "1":
        raise UserError(message)
    time.sleep(600)


def end_on_rank_1(how):
    if os.environ["RANK"] == "1":
        exec(how)
    time.sleep(600)


def killed_on_rank_1(signal_number):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal_number)
    time.sleep(600)


def stop_the_fork_server(folder, status):
    """Rank 1, the last to start, stops the parent of all workers. Then both end, rank 1 with `status`."""
    stopped = Path(folder) / "stopped"
    if os.environ["RANK"] == "1":
        os.kill(os.getppid(), signal.SIGSTOP)
        stopped.touch()
        if status:
            os._exit(status)
    while not stopped.exists():
        time.sleep(0.01)


def never_end_after_the_job():
    threading.Thread(target=time.sleep, args=(600,)).start()


def do_not_end_when_asked(folder):
    signal.signal(END, signal.SIG_IGN)
    _tell_processes(folder)
    time.sleep(600)


def hold_the_interpreter(folder):
    """Busy in C code that keeps the interpreter lock: no thread of this process runs again."""
    _tell_processes(folder)
    ctypes.PyDLL(None).sleep(600)


def _tell_processes(folder):
    """Write the ids of this worker and of the fork server, whole."""
    partial = Path(folder) / f"partial-{os.environ['RANK']}"
    partial.write_text(f"{os.getpid()} {os.getppid()}")
    partial.rename(Path(folder) / f"{os.environ['RANK']}.pids")


def launch_two(target, folder):
    """Launch two workers that do `target`, told `folder`, from a process of its own."""
    launch(LocalLauncher(), Job(target=target, args=(folder,), nodes=2, logs=Path(folder) / "logs"))


if __name__ == "__main__":
    try:
        import jobs  # workers import it too, and not this program

        launch_two(getattr(jobs, sys.argv[1]), sys.argv[2])
    except KeyboardInterrupt as interrupt:
        print(f"interrupted by {interrupt}")
