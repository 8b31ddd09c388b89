"""The error of the profile that `doctor --hosts` writes, against real runs on the same hosts.

The script measures a profile and runs each method on the hosts. It prints their train seconds beside the seconds of
their traces, replayed on the profile. Without `--hosts`, the hosts are two network namespaces of this machine with
one core each and links of `--bandwidth`; this needs Linux and root.

    python scripts/bench/hosts_profile.py --methods ist --rounds 3 --profile office-1gbit    # to try it, as root
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from host_faults import hosts, shape_link, why_not

LOCAL_STEPS = {"ist": 5, "local_sgd": 5, "ddp": 1, "parameter_server": 1, "p3": 1}


@dataclass(frozen=True)
class Asking:
    """hosts: their names, for `--hosts`. environment: of commands that reach them. folder: where commands run."""

    hosts: str
    environment: Mapping[str, str]
    folder: Path

    def istbench(self, *words: str) -> str:
        """The output of istbench for `words`."""
        command = [sys.executable, "-m", "istbench", *words, "--hosts", self.hosts]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout


@contextmanager
def asking(arguments: argparse.Namespace, folder: Path) -> Iterator[Asking]:
    """The hosts of `--hosts`, or two namespaces."""
    if arguments.hosts:
        yield Asking(arguments.hosts, os.environ, Path.cwd())
        return
    if reason := why_not():
        raise SystemExit(reason)
    with hosts(2, folder / "hosts") as found:
        for number, core in zip(range(2), itertools.cycle(sorted(os.sched_getaffinity(0))), strict=False):
            os.sched_setaffinity(found.servers[number].pid, {core})
            shape_link(found, number, arguments.bandwidth)
        # Outside istbench's own sources, which hosts would find too.
        yield Asking(",".join(found.names), found.environment, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", help="names of hosts, separated by commas")
    parser.add_argument("--bandwidth", default="100mbit", help="bandwidth of the links of namespaces")
    parser.add_argument("--methods", default=",".join(LOCAL_STEPS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--profile", help="use this cluster or profile file, and measure none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, asking(arguments, Path(folder)) as found:
        profile = arguments.profile or str(Path(folder, "measured.toml"))
        if arguments.profile is None:
            print(found.istbench("doctor", "--profile", profile), file=sys.stderr)
            print(Path(profile).read_text(), file=sys.stderr)
        print("| method | measured s | replayed s | replayed / measured |")
        print("| --- | ---: | ---: | ---: |")
        for method in arguments.methods.split(","):
            steps = arguments.rounds * LOCAL_STEPS[method]
            words = ["run", "--method", method, "--workload", "toy", "--seed", "1", "--steps", str(steps)]
            words += ["--workload-set", f"hidden={arguments.hidden}", "--workload-set", "samples=4096"]
            words += ["--batch-size", "32", "--eval-every", "1000", "--cluster", profile, "--json"]
            words += ["--set", f"local_steps={LOCAL_STEPS[method]}"] if LOCAL_STEPS[method] > 1 else []
            result = json.loads(found.istbench(*words, "--out", str(Path(folder, "results"))))
            measured, replayed = result["train_s"], result["cluster"]["seconds"]
            print(f"| {method} | {measured:.2f} | {replayed:.2f} | {replayed / measured:.2f} |", flush=True)


if __name__ == "__main__":
    main()
