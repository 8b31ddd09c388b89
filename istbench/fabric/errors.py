"""Errors of the fabric."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import DistError


class FabricError(RuntimeError):
    """An operation did not complete. The message names this rank, the operation and the missing ranks."""


def is_of_peers(error: Exception) -> bool:
    """Whether `error` comes from torch's process group or store, not from the code that calls them."""
    return not isinstance(error, FabricError) and (isinstance(error, DistError) or "gloo" in str(error))


def timed_out(error: Exception) -> bool:
    """Whether `error` is a time-out of torch or Python, by its text."""
    return any(word in str(error) for word in ("imed out", "imeout"))


@contextmanager
def peers_needed(failed: str) -> Iterator[None]:
    """Turn errors of torch's stores and process groups into a `FabricError` that begins with `failed`.

    Usually another rank ended first.
    """
    try:
        yield
    except FabricError:
        raise
    except RuntimeError as error:
        raise FabricError(f"{failed}: {str(error).splitlines()[0]}") from error
