"""istbench: time-to-accuracy of distributed training methods, over the network you have."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`istbench.record`, which imports torch."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from istbench.plan.recording.block import record

    return record
