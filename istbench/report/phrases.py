"""Phrases that tables and plots share."""

from istbench.config.data_source import DataSource


def count_nodes(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def data_line(source: DataSource) -> str:
    """The data for a footer: which, how much of it, and its fingerprint."""
    what = f"Data: {source.seen}, fingerprint {source.fingerprint[:12]}."
    if source.kind == "synthetic":
        return f"{what} Made by istbench: these figures say nothing about the real dataset."
    return what
