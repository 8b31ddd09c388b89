"""A model on a parameter server: every node updates its share of the parameters and sends it to the others."""

from istbench.methods.served.model import ServedModel

__all__ = ["ServedModel"]
