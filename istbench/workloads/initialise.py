"""Initial weights that any node can compute, in any blocks of rows.

Row r of a parameter is a fixed window of one counter-based random stream (Philox, Salmon et al., SC 2011), with the
key (seed, parameter name). So the cost of a block is its own size, and its bits do not depend on the node: one seed
is one full model, for every method and number of nodes.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

_DRAWS_PER_COUNTER = 8  # one Philox counter yields four 64-bit words, each two float32 draws


@dataclass(frozen=True)
class Initializer:
    """The initial distribution of one parameter.

    `kind` is constant, uniform or normal; `scale` is the value, the bound or the standard deviation.
    """

    kind: str
    scale: float


def initializers(model: nn.Module) -> dict[str, Initializer]:
    """The initializer of every parameter, following torch's own defaults for each module type.

    Linear and convolution weights and biases are uniform within 1/sqrt(fan_in); normalisation layers start
    at one and zero; embeddings are standard normal; recurrent layers uniform within 1/sqrt(hidden).

    Raises:
        ValueError: for a parameter of a module type without a rule here.
    """
    rules: dict[str, Initializer] = {}
    for prefix, module in model.named_modules():
        for short, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{short}" if prefix else short
            rules.setdefault(name, _rule(module, short, parameter, name))
    return {name: rules[name] for name, _ in model.named_parameters()}


def _rule(module: nn.Module, short: str, parameter: Tensor, name: str) -> Initializer:
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        weight = module.weight
        fan_in = weight[0].numel() if not getattr(module, "transposed", False) else weight[:, 0].numel()
        return Initializer("uniform", 1 / math.sqrt(fan_in))
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm):
        return Initializer("constant", 1.0 if short == "weight" else 0.0)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return Initializer("normal", 1.0)
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return Initializer("uniform", 1 / math.sqrt(module.hidden_size))
    raise ValueError(f"no initial value rule for {name} of {type(module).__name__}, shape {tuple(parameter.shape)}")


def initial_buffer(model: nn.Module, name: str) -> Tensor:
    """Initial value of buffer `name`: running means 0, running variances 1, counters 0.

    Raises:
        ValueError: for any other buffer; a workload with one overrides `Workload.initial_buffer`.
    """
    shape, dtype = model.get_buffer(name).shape, model.get_buffer(name).dtype
    values = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
    short = name.rsplit(".", 1)[-1]
    if short not in values:
        raise ValueError(f"no initial value rule for buffer {name}")
    return torch.full(shape, values[short], dtype=dtype, device="cpu")


def initial_rows(rule: Initializer, shape: torch.Size, name: str, rows: Tensor | None, seed: int) -> Tensor:
    """Initial float32 values of `rows` (indices along dimension 0; None for all) of a parameter.

    Returns a tensor of shape [len(rows), *shape[1:]]. A row has the same bits in every block.
    """
    total = shape[0] if len(shape) else 1
    wanted = np.arange(total) if rows is None else rows.cpu().numpy()
    out_shape = (len(wanted), *shape[1:]) if len(shape) else ()
    if rule.kind == "constant":
        return torch.full(out_shape, rule.scale)
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    uniform = torch.from_numpy(_uniform_rows(key, wanted, math.prod(shape[1:]))).reshape(out_shape)
    if rule.kind == "uniform":
        return uniform.mul_(2 * rule.scale).sub_(rule.scale)
    # The draws are multiples of 2^-24 in [0, 1). Half a step keeps erfinv finite; the order of operations matters.
    return torch.erfinv(uniform.mul_(2).sub_(1).add_(2**-24)).mul_(rule.scale * math.sqrt(2))


def _uniform_rows(key: int, rows: np.ndarray, columns: int) -> np.ndarray:
    counters = -(-columns // _DRAWS_PER_COUNTER)
    padded = counters * _DRAWS_PER_COUNTER
    out = np.empty((len(rows), columns), dtype=np.float32)
    if len(rows) == 0 or columns == 0:
        return out
    starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
    for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
        stream = np.random.Generator(np.random.Philox(key=key).advance(int(rows[start]) * counters))
        if padded == columns:
            stream.random(out=out[start:stop], dtype=np.float32)
        else:
            out[start:stop] = stream.random((stop - start, padded), dtype=np.float32)[:, :columns]
    return out


def with_storage(model: nn.Module, device: torch.device) -> nn.Module:
    """Give `model` storage on `device`, without values; returns it. A parameter with several names stays one."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    # As `to_empty`, which imports sympy for a tensor on the meta device: half a second in every worker.
    blank = model._apply(lambda tensor: _without_values(tensor, device))
    for first, *others in names.values():
        for name in others:  # a shared parameter: every name has its own copy now
            owner, _, short = name.rpartition(".")
            setattr(blank.get_submodule(owner), short, blank.get_parameter(first))
    return blank


def _without_values(tensor: Tensor, device: torch.device) -> Tensor:
    """As `torch.empty_like`: with the strides of `tensor` if its elements lie side by side, each once."""
    if type(tensor) not in (Tensor, nn.Parameter):
        return torch.empty_like(tensor, device=device)
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if span != tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
