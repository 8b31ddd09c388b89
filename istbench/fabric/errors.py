"""What the fabric raises."""

from collections.abc import Iterator
from contextlib import contextmanager


class FabricError(RuntimeError):
    """An operation did not complete. The message names this rank, the operation and the missing ranks."""


@contextmanager
def peers_needed(failed: str) -> Iterator[None]:
    """Have what torch's stores and groups raise be for want of peers, who mostly ended first: what `failed`."""
    try:
        yield
    except RuntimeError as error:
        raise FabricError(f"{failed}: {str(error).splitlines()[0]}") from error
