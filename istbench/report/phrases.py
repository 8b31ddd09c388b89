"""Phrases that tables and plots share."""


def count_nodes(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def data_name(kind: str) -> str:
    """The data for a title."""
    return "SYNTHETIC data" if kind == "synthetic" else f"{kind} data"


def data_line(kind: str, fingerprint: str = "") -> str:
    """The data for a footer."""
    where = f", fingerprint {fingerprint[:12]}" if fingerprint else ""
    if kind == "synthetic":
        return f"Data: SYNTHETIC, made by istbench{where}. These figures say nothing about the real dataset."
    return f"Data: {kind}{where}."
