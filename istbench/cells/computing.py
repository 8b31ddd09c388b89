"""Whether this machine can compute as a run asks: in mixed precision, channels last, compiled."""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from istbench.config.run import RunRequest
from istbench.errors import UserError
from istbench.methods.base import Method
from istbench.node.computed import HALF


def check_computing(request: RunRequest, method: Method, model: nn.Module, device: str) -> None:
    """Refuse, before any process starts, what `device`, `method` or `model` (meta device) cannot do, or not use.

    Raises:
        UserError: naming the option.
    """
    if method.own_kernels and device == "cuda":
        raise UserError(f"--device cuda: {request.method} computes on processors alone; use --device cpu")
    if method.own_kernels and request.amp:
        raise UserError(f"--amp: {request.method} computes in float32 alone; leave it out")
    if request.amp and not _computes(HALF[request.amp], device):
        there = "this GPU" if device == "cuda" else "torch on this machine's cores"
        other = "--amp bf16" if request.amp == "fp16" else "--amp fp16" if device == "cuda" else "float32"
        raise UserError(f"--amp {request.amp}: {there} does not compute {HALF[request.amp]}; use {other}")
    if request.channels_last and not any(parameter.dim() == 4 for parameter in model.parameters()):
        raise UserError(f"--channels-last: {request.workload} has no filters of images; leave it out")
    if request.compile and not method.compilable:
        raise UserError(
            f"--compile: {request.method} {method.interrupts}, which would be compiled as one; leave it out"
        )
    if request.compile:
        _check_compiler(device)


def _computes(dtype: torch.dtype, device: str) -> bool:
    """Whether a convolution and a linear layer train in `dtype` on `device`."""
    if device == "cuda":
        return dtype is torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)
    weight = torch.ones(1, 1, 1, 1, requires_grad=True)
    try:
        with torch.autocast(device, dtype=dtype):
            image = F.conv2d(torch.ones(2, 1, 2, 2), weight)
            F.linear(image.flatten(1), torch.ones(2, 4)).float().sum().backward()
    except RuntimeError:
        return False
    return True


def _check_compiler(device: str) -> None:
    """Whether there is what torch.compile needs.

    Raises:
        UserError: naming what is missing.
    """
    names = ("CC", "gcc", "cc", "clang") if device == "cuda" else ("CXX", "g++")
    asked, *usual = names
    given = os.environ.get(asked)
    if not any(shutil.which(name) for name in ([given] if given else usual)):
        kind = "C" if device == "cuda" else "C++"
        raise UserError(
            f"--compile needs a {kind} compiler, and there is no {given or usual[0]}; install one, name it in "
            f"{asked}, or leave --compile out"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise UserError("--compile needs Python's headers; install them (python3-dev), or leave --compile out")
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise UserError("--compile on a GPU needs triton; install it, or leave --compile out")
