"""Peak memory of a node in training, IST against methods with the full model, as a markdown table.

python scripts/bench/memory.py --hidden 16 --layers 2 --nodes 2 --steps 2 --clips 12 --methods ist    # to try it
"""

import argparse

import torch
from cells import run_cell

from istbench.workloads.speech import Speech, SpeechOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--clips", type=int, default=20, help="clips of a word")
    parser.add_argument("--methods", nargs="+", default=["ist", "local_sgd", "ddp"])
    arguments = parser.parse_args()
    with torch.device("meta"):
        model = Speech(SpeechOptions(hidden=arguments.hidden, layers=arguments.layers)).build_model()
    full = 4 * sum(parameter.numel() for parameter in model.parameters())
    print(f"Full model: {full / 1e6:.0f} MB of parameters.\n")
    print("| method | peak MB per node | of the full model |\n| --- | ---: | ---: |")
    for method in arguments.methods:
        steps = ["--set", "local_steps=2"] if method != "ddp" else []
        result = run_cell(
            "--workload", "speech", "--method", method, "--nodes", arguments.nodes, "--steps", arguments.steps,
            "--workload-set", f"hidden={arguments.hidden}", "--workload-set", f"layers={arguments.layers}",
            "--workload-set", f"clips_per_word={arguments.clips}", *steps,
        )  # fmt: skip
        peak = result["peak_memory_bytes_per_node"]
        print(f"| {method} | {peak / 1e6:.0f} | {peak / full:.2f} |", flush=True)


if __name__ == "__main__":
    main()
