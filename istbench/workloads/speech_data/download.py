"""Download of Speech Commands v0.02 through torchaudio, which checks the archive's sha256."""

import shutil
from pathlib import Path

from istbench.workloads import prepared
from istbench.workloads.base import Progress
from istbench.workloads.prepared import downloaded

__all__ = ["download", "downloaded"]

_TASK = "downloading Speech Commands v0.02 (2.3 GB)"
_WAY_OUT = "download speech_commands_v0.02.tar.gz by other means, extract it and give the folder with --data DIR"


def download(folder: Path, progress: Progress) -> Path:
    """Download (2.3 GB) and extract the archive under `folder` unless it is there; returns its directory.

    The final directory appears only when complete. An interrupted extraction starts again from the archive.

    Raises:
        UserError: when the network refuses, the archive is not the published one, or the disk is full.
    """
    return prepared.download(folder, "Speech Commands", _download, task=_TASK, way_out=_WAY_OUT, progress=progress)


def _download(partial: Path) -> None:
    from torchaudio.datasets import SPEECHCOMMANDS

    # torchaudio takes any extracted folder for a whole one.
    shutil.rmtree(partial / "SpeechCommands", ignore_errors=True)
    SPEECHCOMMANDS(partial, download=True)
    for archive in partial.glob("*.tar.gz"):
        archive.unlink()
