"""Runs on four hosts, and the message of each possible fault, as a user sees it.

The hosts are network namespaces of this machine. As in the tests, each has its own sshd, address, host name and
results directory. The script needs Linux and root, and prints Markdown.

    python scripts/bench/hosts_show.py --only "no Python"    # to try it, as root
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from host_faults import Hosts, fill_disk, hosts, processes, said_lines, set_link, shape_link, why_not

_TOY = ["--method", "ist", "--workload", "toy", "--seed", "1"]
_LONG = [*_TOY, "--steps", "200000", "--eval-every", "500", "--checkpoint-every", "1"]
_LATE = "import time\n_now = time.time\ntime.time = lambda: _now() + 3600\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="only faults that match, or digests, or slow link"
    )
    only = re.compile(parser.parse_args().only)
    if why_not():
        raise SystemExit(why_not())
    folder = Path(tempfile.mkdtemp(prefix="istbench-show-"))
    with hosts(4, folder / "hosts") as found:
        show = Show(found, folder, only)
        if only.search("digests"):
            show.digests()
        print("\n| fault | exit status | message |\n| --- | ---: | --- |")
        show.at_rest()
        show.on_the_way()
        if only.search("slow link"):
            show.slow_link()


class Show:
    """Shows messages and digests on running hosts."""

    def __init__(self, found: Hosts, folder: Path, only: re.Pattern[str]) -> None:
        self.hosts, self.folder, self.only = found, folder, only

    def digests(self) -> None:
        """The same cell here, over ssh and under torchrun on each host."""
        words = [*_TOY, "--steps", "20", "--json", "--threads", "1"]
        local = self.istbench("run", *words, "--nodes", "4", "--out", self.folder / "local")
        over_ssh = self.istbench("run", *words, *self.named(), "--out", self.hosts.out)
        print("| run | weights |\n| --- | --- |")
        print(f"| `run --nodes 4` | {digest(local.stdout)} |")
        print(f"| `run --hosts` | {digest(over_ssh.stdout)} |")
        print(f"| torchrun on each of four | {digest(self.under_torchrun(words))} |", flush=True)

    def under_torchrun(self, words: list[str]) -> str:
        """The output of rank 0."""
        ssh = self.hosts.folder / "ssh"
        started = []
        for rank, name in enumerate(self.hosts.names):
            torchrun = f"{sys.executable} -m torch.distributed.run --nnodes 4 --nproc-per-node 1 --node-rank {rank}"
            torchrun += " --rdzv-endpoint 10.79.0.1:29511 -m istbench run"
            command = f"cd / && {torchrun} {' '.join(words)} --out {self.hosts.out}/torchrun"
            started.append(subprocess.Popen([ssh, name, command], stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        said = [process.communicate() for process in started]
        return said[0][0].decode() or said[0][1].decode()

    def at_rest(self) -> None:
        """Faults before anything starts."""
        toy = [*_TOY, "--steps", "20"]
        self.fault("a host that does not answer", "run", *toy, "--hosts", "host0,10.79.0.99")
        self.fault("one host under two names", "run", *toy, "--hosts", "host0,10.79.0.1")
        self.fault("no data", "run", *_TOY[:2], "--workload", "speech", "--data", "/no/data", *self.named(2))
        self.fault("no Python", "run", *toy, *self.named(2), "--hosts-python", "/no/python")
        for what, modules in (
            ("another version", {"istbench": "__version__ = '0.0.1'\n"}),
            ("no istbench", {"istbench": "raise ImportError\n"}),
            ("a clock an hour off", {"sitecustomize": _LATE}),
        ):
            python = self.python_with(what.replace(" ", "-"), modules)
            self.fault(what, "run", *toy, *self.named(2), "--hosts-python", python)
        self.hosts.resize(0, "1m")
        self.fault("a full disk", "run", *toy, *self.named(2))
        self.hosts.resize(0, "1g")
        with self.route("prohibit", "10.79.0.1/32"):
            self.fault("a firewall between hosts", "run", *toy, *self.named(2))

    def on_the_way(self) -> None:
        """Faults during a run. After each of them the same command resumes."""
        self.fault_amid("Ctrl-C on the requesting host", lambda asked: asked.send_signal(signal.SIGINT))
        self.fault_amid("a worker that is killed", lambda _: self.kill(2, "torch.distributed.run", but=True))
        self.fault_amid("a host whose torchrun is killed", lambda _: self.kill(1, "torch.distributed.run"))
        self.fault_amid("a host whose link goes down", lambda _: set_link(self.hosts, 3, "down"))
        set_link(self.hosts, 3, "up")
        self.fault_amid("the first host's disk fills up", lambda _: fill_disk(self.hosts, 0))

    def slow_link(self) -> None:
        """One link with half of the bandwidth of the others."""
        for number in range(4):
            shape_link(self.hosts, number, "200mbit" if number != 2 else "100mbit")
        profile = self.folder / "measured.toml"
        said = self.istbench("doctor", *self.named(), "--profile", profile)
        print(f"\n```\n{said.stderr}{said.stdout}\n{profile.read_text()}```")

    def fault(self, what: str, *words: object) -> None:
        """Print the message of a fault, and the processes that still run."""
        if self.only.search(what):
            asked = self.istbench(*words, "--out", self.hosts.out)
            self.row(what, asked.returncode, asked.stderr)

    def fault_amid(self, what: str, happens: Callable[[subprocess.Popen[str]], object]) -> None:
        """The same for a fault that `happens` after the first checkpoint of a run."""
        if not self.only.search(what):
            return
        out = self.hosts.out / re.sub(r"\W+", "-", what)
        command = self.hosts.command("run", *_LONG, *self.named(), "--out", out, "--json")
        asked = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.hosts.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        there = self.hosts.results(0) / out.name
        until = time.monotonic() + 120
        while not list(there.glob("runs/*/checkpoint/latest.json")):
            if asked.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"no checkpoint before {what}")
            time.sleep(0.1)
        happens(asked)
        _, said = asked.communicate()
        home = list(out.glob("runs/*/run.json"))
        status = f" (run: {json.loads(home[0].read_text())['status']})" if home else ""
        self.row(what + status, asked.returncode, said)

    def row(self, what: str, status: int, said: str) -> None:
        """A row of the table. The hosts get half a minute to end all processes."""
        until = time.monotonic() + 30
        while self.hosts.left() and time.monotonic() < until:
            time.sleep(0.2)
        left = f" **left running: {self.hosts.left()}**" if self.hosts.left() else ""
        print(f"| {what} | {status} | {'<br>'.join(said_lines(said)).replace('|', '/')}{left} |", flush=True)

    def istbench(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run a command; returns its outcome."""
        command = self.hosts.command(*words)
        # Outside istbench's own sources, which hosts would find too.
        return subprocess.run(command, cwd=self.folder, env=self.hosts.environment, text=True, capture_output=True)

    def named(self, count: int = 4) -> list[str]:
        """The option that names the first hosts."""
        return ["--hosts", ",".join(self.hosts.names[:count])]

    def python_with(self, name: str, modules: dict[str, str]) -> Path:
        """A Python that imports `modules` (sources by name) before all others."""
        folder = self.folder / name
        folder.mkdir()
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(source)
        (folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        (folder / "python").chmod(0o755)
        return folder / "python"

    @contextlib.contextmanager
    def route(self, *words: str) -> Iterator[None]:
        self.hosts.inside(1, "ip", "route", "add", *words)
        try:
            yield
        finally:
            self.hosts.inside(1, "ip", "route", "del", *words)

    def kill(self, number: int, words: str, but: bool = False) -> None:
        """Kill a host's youngest process with `words` in its command; with `but`, the worker of that torchrun."""
        for process, command in processes(self.hosts, number):
            if "python" in command and (words in command) != but and "-m istbench" in command:
                os.kill(process, signal.SIGKILL)
                return
        raise SystemExit(f"nothing to kill on host{number}")


def digest(printed: str) -> str:
    """The digest of the weights in the output of `--json`."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    return str(json.loads(lines[-1])["weights_sha256"]) if lines else f"none: {printed[-300:]}"


if __name__ == "__main__":
    main()
