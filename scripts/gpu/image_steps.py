"""Train a network of torchvision on random images, as a user's script for `istbench record`.

python scripts/gpu/image_steps.py --model resnet18 --batch-size 2 --side 32 --steps 2    # to try it
"""

import argparse
import os

import torch
import torchvision


def train(model_name: str, batch_size: int, side: int, steps: int, *, bf16: bool, compiled: bool) -> None:
    """Take `steps` steps of SGD with momentum on one fixed batch [batch_size, 3, side, side]."""
    device = torch.device(os.environ.get("DAY_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    model = torchvision.models.get_model(model_name, weights=None).to(device)
    if bf16:
        model = model.to(memory_format=torch.channels_last)
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch_size, 3, side, side, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = torch.nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=224, help="pixels")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16, channels last")
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    train(asked.model, asked.batch_size, asked.side, asked.steps, bf16=asked.bf16, compiled=asked.compile)


if __name__ == "__main__":
    main()
