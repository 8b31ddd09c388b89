"""A causal transformer over symbols, with pre-LayerNorm blocks (Radford et al., "Language models are unsupervised
multitask learners", 2019).

Independent Subnet Training deals out the heads of each block's attention and the hidden units of its perceptron.
All other tensors are whole in every subnet. No normalisation follows the sums that add to the stream, so a subnet
scales them: the stream has the same scale in a subnet as in the full model.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from istbench.workloads.initialise import Initializer
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot

_DEVIATION = 0.02  # standard deviation of initial weights
_HIDDEN = 4  # hidden units of a perceptron, as a multiple of the width


class Attention(nn.Module):
    """Causal self-attention of `heads` heads of `size` numbers each.

    The rows of `heads.weight` are those of one head after the other: its queries, keys and values. So one product
    computes all three, and the rows of a head are consecutive.
    """

    def __init__(self, width: int, heads: int, size: int, *, dropout: float, bias: bool) -> None:
        super().__init__()
        self.count, self.size, self.dropout = heads, size, dropout
        self.heads = nn.Linear(width, 3 * heads * size, bias=bias)
        self.projection = nn.Linear(heads * size, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, width] to [b, t, width]; position i sees the positions up to i."""
        batch, length, _ = x.shape
        each = self.heads(x).view(batch, length, -1, 3 * self.size).transpose(1, 2)
        queries, keys, values = each.split(self.size, dim=-1)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=True)
        projected: Tensor = self.projection(seen.transpose(1, 2).reshape(batch, length, -1))
        return projected


class Perceptron(nn.Module):
    """One hidden layer of `units` units, with GELU."""

    def __init__(self, width: int, units: int, *, bias: bool) -> None:
        super().__init__()
        self.units = units
        self.hidden = nn.Linear(width, self.units, bias=bias)
        self.output = nn.Linear(self.units, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, width] to [b, t, width]."""
        output: Tensor = self.output(F.gelu(self.hidden(x)))
        return output


class TransformerBlock(nn.Module):
    """Attention, then a perceptron, each of the normalised stream and added to it.

    `widen` multiplies the heads and the hidden units, and `narrow` divides them, rounded up. late: as in
    `NeuronGroup`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        dropout: float,
        bias: bool,
        widen: int = 1,
        narrow: int = 1,
        late: bool = False,
    ) -> None:
        super().__init__()
        self.late = late
        self.attention_norm = nn.LayerNorm(width, bias=bias)
        self.attention = Attention(width, -(-widen * heads // narrow), width // heads, dropout=dropout, bias=bias)
        self.perceptron_norm = nn.LayerNorm(width, bias=bias)
        self.perceptron = Perceptron(width, -(-widen * _HIDDEN * width // narrow), bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, width] to [b, t, width]."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.perceptron(self.perceptron_norm(x)))


class Transformer(nn.Module):
    """Embeddings of symbols and positions, blocks, a LayerNorm and the scores of the next symbol.

    With `tied`, the output layer has the weights of the symbols' embedding.

    widen: heads and hidden units of the blocks in `widened`, as a multiple. Late blocks are those behind the first
        quarter. narrow: divides the heads and hidden units of every block, rounded up.
    """

    def __init__(
        self,
        symbols: int,
        *,
        width: int,
        layers: int,
        heads: int,
        context: int,
        dropout: float = 0.0,
        bias: bool = False,
        tied: bool = True,
        widen: int = 1,
        widened: Literal["late", "all"] = "late",
        narrow: int = 1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList()
        for number in range(layers):
            late = number >= layers / 4
            wider = widen if late or widened == "all" else 1
            self.blocks.append(
                TransformerBlock(width, heads, dropout=dropout, bias=bias, widen=wider, narrow=narrow, late=late)
            )
        self.norm = nn.LayerNorm(width, bias=bias)
        self.output = nn.Linear(width, symbols, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, symbols: Tensor) -> Tensor:
        """Scores [b, t, symbols] of each next symbol; `symbols` int64 [b, t], t up to the context."""
        positions = torch.arange(symbols.shape[1], device=symbols.device)
        x = self.dropout(self.embedding(symbols) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.output(self.norm(x))
        return scores


def initializer(name: str, layers: int) -> Initializer:
    """The initial distribution of parameter `name` of a transformer of that many `layers`, as in GPT-2.

    Weights are normal, those of LayerNorm one, biases zero. Layers that add to the stream start smaller, because
    the stream is a sum over 2 x `layers` of them.
    """
    module, _, kind = name.rpartition(".")
    if kind == "bias":
        return Initializer("constant", 0.0)
    if module.endswith("norm"):
        return Initializer("constant", 1.0)
    adds = module.endswith(("attention.projection", "perceptron.output"))
    return Initializer("normal", _DEVIATION / math.sqrt(2 * layers) if adds else _DEVIATION)


def transformer_groups(model: Transformer) -> list[NeuronGroup]:
    """Of each block, a group of its heads and a group of its perceptron's hidden units."""
    groups = []
    for number, block in enumerate(model.blocks):
        assert isinstance(block, TransformerBlock)
        attention, perceptron = block.attention, block.perceptron
        name = f"blocks.{number}"
        heads = [Slot(f"{name}.attention.heads.weight", 0, 3 * attention.size)]
        hidden = [Slot(f"{name}.perceptron.hidden.weight", 0)]
        if attention.heads.bias is not None:
            heads.append(Slot(f"{name}.attention.heads.bias", 0, 3 * attention.size))
            hidden.append(Slot(f"{name}.perceptron.hidden.bias", 0))
        heads.append(Slot(f"{name}.attention.projection.weight", 1, attention.size))
        hidden.append(Slot(f"{name}.perceptron.output.weight", 1))
        for part, size, slots in (("heads", attention.count, heads), ("hidden", perceptron.units, hidden)):
            sums = (slots[-1].tensor,)
            groups.append(NeuronGroup(f"block{number + 1}.{part}", size, tuple(slots), late=block.late, sums=sums))
    return groups
