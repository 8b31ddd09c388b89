"""Copies from GPU to GPU, compared with what was sent: some drivers copy zeros, and training goes on with them."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_VALUES = 1 << 20
_WAY_OUT = (
    "peer-to-peer copies of this driver are broken: set NCCL_P2P_DISABLE=1, or turn off the IOMMU (ACS) as NCCL's "
    "troubleshooting says"
)


def here() -> list[torch.device]:
    """The GPUs of this machine."""
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def broken_copies(devices: Sequence[torch.device]) -> str:
    """The pairs of `devices` whose copies differ, with the way out, as one line; empty if all are equal."""
    pairs = itertools.permutations(devices, 2)
    broken = [f"{source} to {target} {wrong}" for source, target in pairs if (wrong := wrong_copy(source, target))]
    return f"{', '.join(broken)}; {_WAY_OUT}" if broken else ""


def wrong_copy(
    source: torch.device, target: torch.device, copy: Callable[[Tensor, torch.device], Tensor] = Tensor.to
) -> str:
    """What arrives at `target` if a tensor of `source` is copied there wrongly; empty if it arrives whole."""
    expected = torch.arange(1, _VALUES + 1, dtype=torch.int32)
    found = copy(expected.to(source), target).cpu()
    if torch.equal(found, expected):
        return ""
    return "arrives as zeros" if not found.any() else "arrives with other values"
