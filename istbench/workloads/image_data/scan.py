"""Decode all images of a data set once, to find and name the broken ones before training."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from istbench.base.errors import UserError, printable
from istbench.base.machine import cores
from istbench.workloads.base import Progress
from istbench.workloads.image_data.decode import BrokenImage, Pixels, in_order, read_file
from istbench.workloads.image_data.folders import ImageFiles

_CHUNK = 256  # images that a thread decodes at a time
_SHOWN = 3
_TASK = "images decoded"


@dataclass
class _Chunk:
    """Some consecutive images: decoded pixels, names of broken files, and a hash of the files."""

    pixels: list[Pixels] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    digest: bytes = b""


class Scan:
    """Decodes every image of `files` with `decode`, in one thread per core.

    converted, resized: numbers of images so far that were not RGB, or had another size.
    """

    def __init__(self, files: ImageFiles, decode: Callable[[bytes], Pixels], progress: Progress) -> None:
        self._files, self._decode, self._progress = files, decode, progress
        self._digest = hashlib.sha256(files.labels.tobytes() + files.is_test.tobytes())
        self.converted = self.resized = 0

    @property
    def fingerprint(self) -> str:
        """A hash of the files' content, labels and splits, complete after the last chunk."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the images in order, uint8 [3, h, w] each, in chunks: number of the first image, and the images.

        After a broken image it yields no more chunks, but checks all other images.

        Raises:
            UserError: at the end, with the number of broken images and the names of the first.
        """
        total, broken = len(self._files.paths), list[str]()
        self._progress(_TASK, 0, total)
        firsts = range(0, total, _CHUNK)
        for first, chunk in zip(firsts, in_order(cores(), self._chunk, firsts), strict=True):
            broken += chunk.broken
            self.converted += sum(pixels.converted for pixels in chunk.pixels)
            self.resized += sum(pixels.resized for pixels in chunk.pixels)
            self._digest.update(chunk.digest)
            if not broken:
                yield first, [pixels.image for pixels in chunk.pixels]
            self._progress(_TASK, min(first + _CHUNK, total), total)
        if broken:
            more = f" and {len(broken) - _SHOWN:,} more" if len(broken) > _SHOWN else ""
            raise UserError(
                f"{len(broken):,} of {total:,} images cannot be decoded: {', '.join(broken[:_SHOWN])}{more}; "
                "replace or remove them"
            )

    def _chunk(self, first: int) -> _Chunk:
        chunk, digest = _Chunk(), hashlib.sha256()
        for path in self._files.paths[first : first + _CHUNK]:
            try:
                content = read_file(path)
                chunk.pixels.append(self._decode(content))
                digest.update(hashlib.sha256(content).digest())
            except BrokenImage as why:
                chunk.broken.append(_named(path, why))
        chunk.digest = digest.digest()
        return chunk


def _named(path: Path, why: BrokenImage) -> str:
    return f"{printable(str(path))} ({why})"
