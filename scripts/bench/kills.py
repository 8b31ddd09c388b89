"""Runs of every method that lose workers by SIGKILL and restart by themselves, against runs that nothing disturbed.

python scripts/bench/kills.py --methods ddp --kills 1 --runs 1 --steps 20    # to try it

For each method, one run of three workers goes undisturbed. Others have `--restarts 3`. Kills hit rank 0, another
rank, and a host in turn, at random moments between the first evaluation and the end. A host has rank 0 alone, or
the other two workers, which are killed at once. The run evaluates again before the next kill. Each must end by
itself in the weights and evaluations of the first run. The seconds are those of its own record.

`--over-ssh` takes the power of whole hosts instead, once in each method's run (`host_kills`); it needs root.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from host_kills import lose_hosts
from killed_runs import METHODS, Row, SlowRun, has_evaluated, print_seconds, undisturbed, words_of

from istbench.results.run_parts import Restart, restarts
from istbench.results.store import RunDirectory

NODES, RESTARTS = 3, 3
VICTIMS: dict[str, list[tuple[int, ...]]] = {
    "rank 0": [(0,)],
    "another rank": [(1,), (2,)],
    "a host": [(0,), (1, 2)],
}
_READY_S = 120.0
_LOG = re.compile(r"/logs/rank-([0-9]+)/")


def workers(slow: SlowRun) -> dict[int, int]:
    """The living workers of a run: process ids by rank. Their output goes to a log of each."""
    found = {}
    for process in slow.members():
        try:
            log = _LOG.search(str(Path(f"/proc/{process}/fd/1").readlink()))
        except OSError:
            continue
        if log is not None:
            found[int(log[1])] = process
    return found


def trains_on(run: Path, losses: int) -> bool:
    """Whether the run has evaluated after so many `losses`."""
    _, *parts = (run / "events.jsonl").read_bytes().split(b'"event":"ready"')
    return len(parts) == losses and b'"evaluation"' in parts[-1]


def kill(slow: SlowRun, run: Path, ranks: Sequence[int], losses: int) -> bool:
    """Kill workers `ranks` after so many `losses`, and wait until the run trains on; False if it had ended."""
    living = workers(slow)
    if not all(rank in living for rank in ranks):
        return False
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):  # its launcher ended it, because another one is lost
            os.kill(living[rank], signal.SIGKILL)
    until = time.monotonic() + _READY_S
    while slow.process.poll() is None and not trains_on(run, losses + 1):
        if time.monotonic() > until:
            raise SystemExit(f"the run does not train on within {_READY_S:g} s after a kill")
        time.sleep(0.01)
    return True


def lose(
    row: Row, words: list[str], slow_s: float, victims: Iterator[str], chance: random.Random, kills: int
) -> list[Restart]:
    """Run to the end with up to `kills`, note in `row` whether it is the undisturbed run; returns its restarts."""
    with tempfile.TemporaryDirectory() as folder:
        slow = SlowRun([*words, f"--restarts={RESTARTS}"], Path(folder), slow_s)
        run, done = slow.wait_for(has_evaluated), 0
        for _ in range(kills):
            time.sleep(chance.uniform(0, row.seconds / kills))
            victim = next(victims)
            if not kill(slow, run, chance.choice(VICTIMS[victim]), done):
                break
            row.kills[victim] += 1
            done += 1
        status = slow.process.wait()
        header = json.loads((run / "run.json").read_text())
        found = restarts(RunDirectory(run).events())
        if status or header["status"] != "done":
            row.wrong.append(str(header["error"]))
        elif len(found) > done:
            row.wrong.append(f"{len(found)} restarts after {done} kills")
        else:
            row.compare(header["result"]["weights_sha256"], run)
        return found


def main() -> int:
    """Print a row for each method, and the seconds of all restarts; returns 1 if a run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), metavar="NAME,...")
    parser.add_argument("--kills", type=int, default=2, metavar="N", help="kills of each run, at most 3")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="runs of each method that lose workers")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--slow", type=float, default=0.03, metavar="S", help="seconds that every step waits")
    parser.add_argument("--seed", type=int, default=0, help="of moments")
    parser.add_argument("--over-ssh", action="store_true", help="lose hosts over ssh, each of which has a spare")
    asked = parser.parse_args()
    if asked.over_ssh:
        return lose_hosts(asked.methods.split(","), asked.steps, asked.slow, asked.seed)
    if not 0 < asked.kills <= RESTARTS:
        parser.error(f"--kills must be 1 to {RESTARTS}: a run restarts so often")
    chance = random.Random(asked.seed)
    print(f"| method | {' | '.join(VICTIMS)} | undisturbed result | seconds lost by each kill | else |")
    print("| :--- | ---: | ---: | ---: | ---: | :--- | :--- |", flush=True)
    every, same, runs = list[Restart](), 0, 0
    turns, killed = itertools.cycle(VICTIMS), Counter[str]()
    for method in asked.methods.split(","):
        words = words_of(method, asked.steps)
        words[words.index("--nodes") + 1] = str(NODES)
        row, found = undisturbed(words, asked.slow), list[Restart]()
        for _ in range(asked.runs):
            found += lose(row, words, asked.slow, turns, chance, asked.kills)
        killed += row.kills
        kills = " | ".join(str(row.kills[victim]) for victim in VICTIMS)
        seconds, wrong = ", ".join(f"{one.seconds:.1f}" for one in found), "; ".join(row.wrong)
        print(f"| {method} | {kills} | {row.same} of {asked.runs} | {seconds} | {wrong} |", flush=True)
        every, same, runs = [*every, *found], same + row.same, runs + asked.runs
    print(
        f"\n{same} of {runs} runs with {killed.total()} kills and {len(every)} restarts ended in the undisturbed "
        f"weights and evaluations; kills of {', '.join(f'{name}: {killed[name]}' for name in VICTIMS)}"
    )
    print_seconds(every)
    return int(same != runs)


if __name__ == "__main__":
    raise SystemExit(main())
