"""Download of CIFAR-10 through torchvision, which checks the archive's md5."""

import shutil
from pathlib import Path

from istbench.workloads.base import Progress
from istbench.workloads.prepared import download

_TASK = "downloading CIFAR-10 (170 MB)"
_WAY_OUT = "download cifar-10-python.tar.gz by other means, extract it and give the folder with --data DIR"


def download_cifar10(folder: Path, progress: Progress) -> Path:
    """Download (170 MB) and extract the archive under `folder` unless it is there; returns its directory.

    Raises:
        UserError: when the network refuses, the archive is not the published one, or the disk is full.
    """
    return download(folder, "CIFAR-10", _fetch, task=_TASK, way_out=_WAY_OUT, progress=progress)


def _fetch(partial: Path) -> None:
    from torchvision.datasets import CIFAR10

    # A folder that an interrupted extraction left is not whole.
    shutil.rmtree(partial / "cifar-10-batches-py", ignore_errors=True)
    CIFAR10(partial, download=True)
    for archive in partial.glob("*.tar.gz"):
        archive.unlink()
