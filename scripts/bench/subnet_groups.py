"""The neuron groups that istbench finds in torchvision's classification networks, as a markdown table.

Each network is untrained and runs on two random images. "dealt" is the share of its parameters in tensors that a
group indexes, "subnet" the share of all parameters that a node of `--nodes` trains. The last column names the
reasons why layers stay whole: their share of the parameters, their number and the first one. Without `--models`
or `--all`, a small network of each family is taken. `--largest` leaves out networks with more million parameters.

    python scripts/bench/subnet_groups.py --models squeezenet1_1    # to try it
"""

import argparse
import re
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision import models

from istbench.workloads.neuron_groups.discovery import Discovered, discover_groups

FAMILIES = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t "
    "mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d "
    "shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn vit_b_32 wide_resnet50_2"
)
FIXED_PIXELS = {"inception": 299, "maxvit": 224, "vit": 224}  # by the start of the name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(FAMILIES.split()), help="names as in torchvision.models")
    parser.add_argument("--all", action="store_true", help="every classification network of torchvision")
    parser.add_argument("--pixels", type=int, default=64, help="of the images, where the network takes any size")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--largest", type=float, default=140, help="million parameters of a network")
    arguments = parser.parse_args()
    names = models.list_models(module=models) if arguments.all else arguments.models.split(",")
    print(f"| network | parameters, M | groups | units | dealt, % | subnet of {arguments.nodes}, % | s | whole |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for name in names:
        print(row(name, arguments), flush=True)


def row(name: str, arguments: argparse.Namespace) -> str:
    # RegNet cannot be built on the meta device.
    published = models.get_model_weights(name).DEFAULT.meta["num_params"]
    if published > arguments.largest * 1e6:
        return f"| {name} | {published / 1e6:.1f} | | | | | | left out: too large |"
    torch.manual_seed(0)
    model = models.get_model(name)
    pixels = next((size for start, size in FIXED_PIXELS.items() if name.startswith(start)), arguments.pixels)
    images = torch.randn(2, 3, pixels, pixels)
    started = time.perf_counter()
    found = discover_groups(model, lambda model: joined(model(images)))
    seconds = time.perf_counter() - started
    units, count = sum(group.size for group in found.groups), parameters(model)
    dealt, subnet = shares(model, found, arguments.nodes)
    return (
        f"| {name} | {count / 1e6:.1f} | {len(found.groups)} | {units:,} | {100 * dealt:.1f} | {100 * subnet:.1f} "
        f"| {seconds:.0f} | {whole(model, found)} |"
    )


def joined(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The outputs of a network in one tensor: some have more than one in training."""
    return outputs if isinstance(outputs, Tensor) else torch.cat([part for part in outputs if part is not None], 1)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def shares(model: nn.Module, found: Discovered, nodes: int) -> tuple[float, float]:
    """The shares of the parameters in tensors that groups index, and of those on one of `nodes` nodes."""
    axes: dict[str, int] = {}
    for group in found.groups:
        for slot in group.slots:
            axes[slot.tensor] = axes.get(slot.tensor, 0) + 1
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    dealt = sum(size for name, size in sizes.items() if name in axes)
    subnet = sum(size / nodes ** axes.get(name, 0) for name, size in sizes.items())
    return dealt / sum(sizes.values()), subnet / sum(sizes.values())


def whole(model: nn.Module, found: Discovered) -> str:
    """The reasons why layers stay whole, the one with the most parameters first."""
    reasons: dict[str, list[str]] = {}
    for layer in found.left_whole:
        reason = re.sub(r"^its \w+ are |( added)? in \S+$| by [\d.e+-]+.*|: .*", "", layer.reason)
        reasons.setdefault(reason, []).append(layer.module)
    total = parameters(model)

    def share(layers: Sequence[str]) -> float:
        owned = (model.get_submodule(layer).parameters(recurse=False) for layer in layers)
        return 100 * sum(parameter.numel() for own in owned for parameter in own) / total

    ordered = sorted(reasons.items(), key=lambda reason: -share(reason[1]))
    return "; ".join(
        f"{reason}: {share(layers):.1f} % in {len(layers)} ({layers[0] or 'the network'})"
        for reason, layers in ordered
    )


if __name__ == "__main__":
    main()
