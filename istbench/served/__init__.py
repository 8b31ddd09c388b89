"""A model whose parameters are served: every node updates its share of them and sends it to the others."""

from istbench.served.model import ServedModel

__all__ = ["ServedModel"]
