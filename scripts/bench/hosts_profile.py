"""The error of the profile that `doctor --hosts` writes, against real runs on the same hosts.

The script measures a profile and runs each method on the hosts. It prints their train seconds beside the seconds of
their traces, replayed on the profile.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

# As many rounds of each.
METHODS = {
    "ist": ["--set", "local_steps=5", "--steps", "300"],
    "local_sgd": ["--set", "local_steps=5", "--steps", "300"],
    "ddp": ["--steps", "60"],
    "parameter_server": ["--steps", "60"],
    "p3": ["--steps", "60"],
}


def istbench(*words: str) -> str:
    """The output of istbench for `words`."""
    return subprocess.run(
        [sys.executable, "-m", "istbench", *words], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--profile", type=Path, help="use this profile, and measure none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = arguments.profile or Path(folder, "measured.toml")
        if arguments.profile is None:
            print(istbench("doctor", "--hosts", arguments.hosts, "--profile", str(profile)), file=sys.stderr)
        print(profile.read_text(), file=sys.stderr)
        print("| method | measured s | replayed s | replayed / measured |")
        print("| --- | ---: | ---: | ---: |")
        for method in arguments.methods.split(","):
            words = ["run", "--hosts", arguments.hosts, "--method", method, "--workload", "toy", "--seed", "1"]
            words += ["--workload-set", f"hidden={arguments.hidden}", "--workload-set", "samples=4096"]
            words += ["--batch-size", "32", "--eval-every", "1000", *METHODS[method]]
            words += ["--out", str(Path(folder, "results"))]
            found = json.loads(istbench(*words, "--cluster", str(profile), "--json"))
            measured, replayed = found["train_s"], found["cluster"]["seconds"]
            print(f"| {method} | {measured:.2f} | {replayed:.2f} | {replayed / measured:.2f} |", flush=True)


if __name__ == "__main__":
    main()
