"""Public models in a plain loop and under istbench, as a markdown table.

Each file in public_models/ that `MODELS` names is a task file: a tiny model of a public package, by its
configuration, without a download. The plain loop is the one that its user would write: the model, SGD, the batches
in order. The script seeds it as istbench seeds a node. It compares all final weights and buffers with those of
`istbench run`:

- equal: to the last bit; but BatchNorm's statistics, which istbench estimates anew;
- near: the largest difference is below 1e-4 of the largest value;
- other: anything else;
- refused: istbench refuses the model by the line of that number below the table.

`ddp` on two nodes stands beside a plain loop on the batches of both nodes together, for models that draw no random
numbers and have no statistics of a batch.

    python scripts/bench/public_models.py --only spectral_hook --methods ddp --steps 2    # to try it
"""

import argparse
import importlib.metadata
import importlib.util
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import torch
from cells import run_cell
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from istbench.base.errors import UserError
from istbench.base.seeds import derived_seed
from istbench.node.checkpoint import seed_random_state
from istbench.node.evaluate import statistics_layers
from istbench.node.model_proof import prove_model
from istbench.node.registry import load_method
from istbench.studies.conformance.of_tasks import opened_task
from istbench.workloads.task_batches import RandomNumbers

FOLDER = Path(__file__).with_suffix("")
sys.path.append(str(FOLDER))  # its task files share modules
MODELS = {
    "autocast": "torch",
    "bart_layerdrop": "transformers",
    "bert": "transformers",
    "compiled": "torch",
    "complex_parameters": "torch",
    "diffusers_unet": "diffusers",
    "equilibrium": "torch",
    "exponential_mean": "torch",
    "gpt2": "transformers",
    "gradient_checkpoints": "torch",
    "graph_gat": "torch_geometric",
    "graph_gcn": "torch_geometric",
    "graph_gin": "torch_geometric",
    "lazy": "torch",
    "lazy_without_sizes": "torch",
    "llama": "transformers",
    "lstm_language": "torch",
    "mamba": "transformers",
    "mixtral": "transformers",
    "neural_ode": "torchdiffeq",
    "recommender": "torch",
    "spectral_hook": "torch",
    "spectral_parametrized": "torch",
    "t5": "transformers",
    "timm_convnext": "timm",
    "timm_efficientnet": "timm",
    "timm_mixer": "timm",
    "timm_mobilenet": "timm",
    "timm_resnet": "timm",
    "timm_vit": "timm",
    "torchvision_detector": "torchvision",
    "torchvision_resnet": "torchvision",
    "vector_quantiser": "vector_quantize_pytorch",
    "wav2vec2": "transformers",
    "weight_norm": "torch",
    "whisper": "transformers",
    "x_transformer": "x_transformers",
}
"""By task file, the package of its model: the `pip install` that it needs."""
ON_TWO = (
    "equilibrium", "llama", "neural_ode", "recommender", "spectral_hook",
    "spectral_parametrized", "timm_mixer", "vector_quantiser", "weight_norm", "x_transformer",
)  # fmt: skip
_NEAR = 1e-4
REFUSED = "refused: "
Weights = Mapping[str, Tensor]


def task_of(path: Path) -> ModuleType:
    """The module of a task file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain_loop(task: ModuleType, steps: int, rate: float, nodes: int) -> tuple[float, nn.Module]:
    """The last training loss, and the model, after `steps` steps on the batches of `nodes` nodes together."""
    with RandomNumbers(derived_seed(0, "model")).drawn():
        model = task.model()
    batches = list(task.data(True))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    seed_random_state(derived_seed(0, "node", 0))
    for step in range(steps):
        optimizer.zero_grad()
        some = [batches[(nodes * step + node) % len(batches)] for node in range(nodes)]
        loss = task.loss(model, some[0] if nodes == 1 else tree_map(lambda *parts: torch.cat(parts), *some))
        loss.backward()
        optimizer.step()
    return float(loss.detach()), model


def compared(expected: nn.Module, found: Weights) -> str:
    """How the weights `found` differ from those of the plain loop: a word, and the first tensor that differs."""
    layers = {id(buffer) for layer in statistics_layers(expected) for buffer in layer.buffers()}
    own = dict(expected.named_buffers(remove_duplicate=False))
    kept = {name: value for name, value in expected.state_dict().items() if id(own.get(name)) not in layers}
    missing = [name for name in kept if name not in found and kept[name].numel()]
    if missing:
        return f"other: no {missing[0]}"
    different = {name: value for name, value in kept.items() if not torch.equal(value, found[name])}
    if not different:
        return "equal"
    largest = max(float(value.abs().max()) for value in kept.values() if value.is_floating_point())
    worst = {name: float((value.double() - found[name].double()).abs().max()) for name, value in different.items()}
    name = max(worst, key=lambda one: worst[one])
    return f"near ({worst[name] / largest:.0e})" if worst[name] < _NEAR * largest else f"other: {name}"


def under_istbench(path: Path, method: str, nodes: int, steps: int, rate: float, expected: nn.Module) -> str:
    """The comparison with `istbench run`, or the line of its refusal."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_cell(
                "--workload", path, "--method", method, "--nodes", nodes, "--steps", steps, "--threads", 1,
                "--eval-every", steps, "--timeout", 60, "--save", folder, "--set", "optimizer=sgd",
                "--set", f"lr={rate}",
            )  # fmt: skip
        except SystemExit as refused:
            return REFUSED + str(refused).strip().splitlines()[-1].removeprefix("istbench: ")
        found = {
            name: value for file in Path(folder).glob("*.safetensors") for name, value in load_file(file).items()
        }
    return compared(expected, found)


def proof_seconds(path: Path, methods: list[str]) -> str:
    """The seconds that the proof of the model takes, by method."""
    try:
        task = opened_task(path)
    except UserError:
        return ""
    seconds = []
    for method in methods:
        kind, started = load_method(method), time.perf_counter()
        if kind.own_object != "kept":
            with suppress(UserError):
                prove_model(task, kind)
            seconds.append(f"{time.perf_counter() - started:.2f}")
    return ", ".join(seconds)


def version_of(package: str) -> str:
    """The installed version; empty without one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def row(path: Path, methods: list[str], steps: int, rate: float) -> list[str]:
    """The cells of a model, from the plain loop's loss on."""
    task = task_of(path)
    loss, model = plain_loop(task, steps, rate, 1)
    cells = [f"{loss:.4f}"]
    cells += [under_istbench(path, method, 1, steps, rate, model) for method in methods]
    if path.stem in ON_TWO:
        cells.append(under_istbench(path, "ddp", 2, steps, rate, plain_loop(task, steps, rate, 2)[1]))
    else:
        cells.append("")
    return [*cells, proof_seconds(path, methods)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of SGD")
    parser.add_argument("--methods", default="ddp,local_sgd,ist", help="separated by commas")
    parser.add_argument("--only", default=",".join(MODELS), help="models, separated by commas")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods, missing = arguments.methods.split(","), []
    refusals: list[str] = []
    proved = "/".join(method for method in methods if load_method(method).own_object != "kept")
    heads = ["model", "package", "plain loss", *methods, "ddp on 2 nodes", f"proof s, {proved}"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name in arguments.only.split(","):
        package = MODELS[name]
        if not version_of(package):
            missing.append(f"{name} ({package})")
            continue
        cells = row(FOLDER / f"{name}.py", methods, arguments.steps, arguments.rate)
        refusals += [cell for cell in dict.fromkeys(cells) if cell.startswith(REFUSED) and cell not in refusals]
        cells = [f"refused ({refusals.index(cell) + 1})" if cell in refusals else cell for cell in cells]
        print(f"| {' | '.join([name, f'{package} {version_of(package)}', *cells])} |", flush=True)
    for number, refusal in enumerate(refusals, start=1):
        print(f"{'' if number > 1 else chr(10)}{number}. {refusal.removeprefix(REFUSED)}")
    if missing:
        print(f"\nSkipped, because their package is missing: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
