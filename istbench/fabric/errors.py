"""What the fabric raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import DistError


class FabricError(RuntimeError):
    """An operation did not complete. The message names this rank, the operation and the missing ranks."""


def is_of_peers(error: Exception) -> bool:
    """Whether `error` comes from torch's process group or store, and not from the code that called them."""
    return not isinstance(error, FabricError) and (isinstance(error, DistError) or "gloo" in str(error))


def timed_out(error: Exception) -> bool:
    """Whether `error` says that time was out, in one of the ways in which torch and Python do."""
    return any(word in str(error) for word in ("imed out", "imeout"))


@contextmanager
def peers_needed(failed: str) -> Iterator[None]:
    """Have what torch's stores and groups raise be for want of peers, who mostly ended first: what `failed`."""
    try:
        yield
    except FabricError:
        raise
    except RuntimeError as error:
        raise FabricError(f"{failed}: {str(error).splitlines()[0]}") from error
