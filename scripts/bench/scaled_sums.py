"""Whether `ist` gains by scaling the sums that no normalisation follows, on four task files beside `local_sgd`.

    python scripts/bench/scaled_sums.py TARGET                            # an hour on two cores
    python scripts/bench/scaled_sums.py TARGET --models mlp --seeds 1 --nodes 1 --steps 4    # to try it

The models are in scripts/bench/scaled_models: a pre-LN transformer, an MLP without normalisation, and a CNN with
and without BatchNorm. Each trains by `local_sgd`, and by `ist` with scale=off and scale=auto, on the same samples.
The program prints the final losses on the test data: the median and the range over seeds, and the differences
between auto and off, paired by seed. With --rates 1,3, a larger learning rate shows whether the factor
only stands for one. The command resumes: a finished run in TARGET does not train again.
"""

import argparse
from itertools import product
from pathlib import Path
from statistics import median

from cells import run_cell

MODELS = Path(__file__).parent / "scaled_models"
SETTINGS = {
    "transformer": ("adamw", 0.001),
    "mlp": ("sgd", 0.1),
    "cnn": ("adam", 0.001),
    "cnn_batch_norm": ("adam", 0.001),
}
"""By task file, its optimizer and learning rate."""
FORMS = {
    "local_sgd": ("local_sgd",),
    "off": ("ist", "--set", "scale=off"),
    "auto": ("ist", "--set", "scale=auto"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--models", default=",".join(SETTINGS), help="task files, separated by commas")
    parser.add_argument("--nodes", default="2,4")
    parser.add_argument("--rates", default="1", help="multiples of the learning rate")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--local-steps", type=int, default=20)
    arguments = parser.parse_args()
    print("| model | nodes | rate | local_sgd | ist, off | ist, auto | auto - off |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rates = [float(rate) for rate in arguments.rates.split(",")]
    for model, nodes, rate in product(arguments.models.split(","), arguments.nodes.split(","), rates):
        losses = {
            form: [_loss(arguments, model, nodes, rate, form, seed) for seed in range(arguments.seeds)]
            for form in FORMS
        }
        gains = [auto - off for auto, off in zip(losses["auto"], losses["off"], strict=True)]
        cells = [_text(losses[form]) for form in FORMS]
        print(
            f"| {model} | {nodes} | {SETTINGS[model][1] * rate:g} | {' | '.join(cells)} | {_text(gains)} |",
            flush=True,
        )


def _loss(arguments: argparse.Namespace, model: str, nodes: str, rate: float, form: str, seed: int) -> float:
    optimizer, default = SETTINGS[model]
    method, *options = FORMS[form]
    result = run_cell(
        *("--workload", MODELS / f"{model}.py", "--method", method, "--nodes", nodes, "--seed", seed),
        *("--steps", arguments.steps, "--eval-every", arguments.steps, "--threads", 1, *options),
        *("--set", f"local_steps={arguments.local_steps}", "--set", f"optimizer={optimizer}"),
        *("--set", f"lr={default * rate:g}"),
        out=arguments.results,
    )
    return float(result["final"]["loss"])


def _text(values: list[float]) -> str:
    return f"{median(values):.3f} [{min(values):.3f} to {max(values):.3f}]"


if __name__ == "__main__":
    main()
