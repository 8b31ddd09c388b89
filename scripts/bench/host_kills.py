"""The part of `kills.py --over-ssh`: runs over ssh that lose a whole host, which a spare host replaces.

The hosts are network namespaces of this machine, each with its own sshd (tests/ssh_hosts.py): three that train, and
a spare. At a random moment between the first evaluation and the end, the link of one of the three goes down and all
its processes are killed, its sshd included, as when a machine loses its power. The run has `--restarts 1`. It must
end by itself, on the spare, in the weights and evaluations of an undisturbed run of three workers here.
"""

import json
import random
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from host_faults import Hosts, hosts, set_link, why_not
from killed_runs import Row, SlowRun, has_evaluated, print_seconds, undisturbed, words_of

from istbench.results.run_parts import Restart, restarts
from istbench.results.store import RunDirectory

NODES = 3


def lose_power(found: Hosts, number: int) -> None:
    """Take a host's link down, and kill all its processes."""
    set_link(found, number, "down")
    subprocess.run(["kill", "-9", *found.pids(number)], check=True)


def lose_host(row: Row, words: list[str], slow_s: float, number: int, wait_s: float) -> list[Restart]:
    """Run over ssh, lose host `number`, note in `row` whether it is the undisturbed run; returns its restarts."""
    with tempfile.TemporaryDirectory() as name:
        folder, install = Path(name), Path(name) / "install"
        install.mkdir()
        # The environment of the one who asks does not reach the hosts, and a slow workload waits by it.
        (install / "sitecustomize.py").write_text(f'import os; os.environ.setdefault("SLOW_S", "{slow_s}")\n')
        with hosts(NODES + 1, folder / "hosts", str(install)) as found:
            *training, spare = found.names
            where = ["--hosts", ",".join(training), "--spare", spare, "--restarts=1"]
            slow = SlowRun([*words, *where], found.out, slow_s, found.environment)
            run = found.out / "runs" / slow.wait_for(has_evaluated, found.results(0)).name
            time.sleep(wait_s)
            if slow.process.poll() is None:
                lose_power(found, number)
                row.kills[training[number]] += 1
            status = slow.process.wait()
            header = json.loads((run / "run.json").read_text())
            lost = restarts(RunDirectory(run).events())
            if status or header["status"] != "done":
                row.wrong.append(slow.said().strip().splitlines()[-1])
            elif len(lost) != row.kills.total():
                row.wrong.append(f"{len(lost)} restarts after {row.kills.total()} lost hosts")
            else:
                row.compare(header["result"]["weights_sha256"], run)
            return lost


def lose_hosts(methods: Sequence[str], steps: int, slow_s: float, seed: int) -> int:
    """Print a row for each method, and the seconds of all restarts; returns 1 if a run differs."""
    if reason := why_not():
        raise SystemExit(reason)
    chance = random.Random(seed)
    print("| method | lost host | undisturbed result | seconds lost | of them noticing | else |")
    print("| :--- | :--- | ---: | ---: | ---: | :--- |", flush=True)
    every, same = list[Restart](), 0
    for turn, method in enumerate(methods, start=seed):
        words = words_of(method, steps)
        words[words.index("--nodes") + 1] = str(NODES)
        row = undisturbed(words, slow_s)
        found = lose_host(row, words, slow_s, turn % NODES, chance.uniform(0, 0.8 * row.seconds))
        parts = ([one.seconds for one in found], [one.noticing_s for one in found])
        seconds, noticing = (", ".join(f"{value:.1f}" for value in values) for values in parts)
        victim, wrong = ", ".join(row.kills) or "none: the run had ended", "; ".join(row.wrong)
        print(f"| {method} | {victim} | {row.same} of 1 | {seconds} | {noticing} | {wrong} |", flush=True)
        every, same = [*every, *found], same + row.same
    ended = f"{same} of {len(methods)} runs with {len(every)} restarts"
    print(f"\n{ended} ended in the undisturbed weights and evaluations")
    print_seconds(every)
    return int(same != len(methods))
