"""Train a causal transformer of GPT-2's shapes on random tokens, as a user's script for `istbench record`.

The defaults are GPT-2 small: 12 layers, 768 channels, 12 heads, 1,024 tokens, a vocabulary padded to 50,304.

    python scripts/gpu/gpt2_steps.py --layers 1 --width 32 --heads 2 --tokens 16 --steps 2    # to try it
"""

import argparse
import os

import torch
from torch import Tensor, nn
from torch.nn import functional

_VOCABULARY = 50_304


class Block(nn.Module):
    """One layer: causal self-attention, then a network four times as wide, both behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map activations [batch, tokens, width] to activations of the same shape."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, tokens, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = qkv.unbind()
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm_mlp(x))


class Transformer(nn.Module):
    """Token and position embeddings, blocks, and an output layer that shares the token embedding."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(_VOCABULARY, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        """Map token ids [batch, tokens] to logits [batch, tokens, vocabulary]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.token(ids) + self.position(places))
        return functional.linear(self.norm(x), self.token.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 12), ("width", 768), ("heads", 12), ("tokens", 1024), ("batch-size", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    device = torch.device(os.environ.get("DAY_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    model = Transformer(asked.layers, asked.width, asked.heads, asked.tokens).to(device)
    forward = torch.compile(model) if asked.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=device.type == "cuda")
    ids = torch.randint(_VOCABULARY, (asked.batch_size, asked.tokens + 1), device=device)
    for _ in range(asked.steps):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=asked.bf16):
            loss = functional.cross_entropy(forward(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
