"""Download of Speech Commands v0.02 through torchaudio, which checks the archive's sha256."""

import shutil
import tarfile
from http.client import HTTPException
from pathlib import Path

from istbench.errors import UserError
from istbench.workloads.base import Progress
from istbench.workloads.speech_data.cache import locked

_COMPLETE = "original"
_PARTIAL = "original.partial"
_TASK = "downloading Speech Commands v0.02 (2.3 GB)"


def downloaded(folder: Path) -> Path | None:
    """The directory of the extracted archive under `folder`, or None when it was never downloaded."""
    complete = folder / _COMPLETE
    return complete if complete.is_dir() else None


def download(folder: Path, progress: Progress) -> Path:
    """Download (2.3 GB) and extract the archive under `folder` unless it is there; returns its directory.

    The final directory appears only when complete. An interrupted extraction starts again from the archive.

    Raises:
        UserError: when the network refuses, the archive is not the published one, or the disk is full.
    """
    complete = downloaded(folder)
    if complete is not None:
        return complete
    progress(_TASK, 0, 1)
    try:
        with locked(folder / ".original.lock", progress):
            # Another process may have been faster.
            if downloaded(folder) is None:
                _download(folder / _PARTIAL)
                (folder / _PARTIAL).rename(folder / _COMPLETE)
    except (OSError, EOFError, RuntimeError, HTTPException, tarfile.TarError) as error:
        raise UserError(
            f"Speech Commands could not be downloaded to {folder}: {_reason(error)}; download "
            "speech_commands_v0.02.tar.gz by other means, extract it and give the folder with --data DIR"
        ) from None
    progress(_TASK, 1, 1)
    return folder / _COMPLETE


def _download(partial: Path) -> None:
    from torchaudio.datasets import SPEECHCOMMANDS

    partial.mkdir(exist_ok=True)
    # torchaudio takes any extracted folder for a whole one.
    shutil.rmtree(partial / "SpeechCommands", ignore_errors=True)
    SPEECHCOMMANDS(partial, download=True)
    for archive in partial.glob("*.tar.gz"):
        archive.unlink()


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
