"""`ist`, Independent Subnet Training: units dealt anew at the ends of rounds or, streaming, a few at a time."""

from typing import Any

from istbench.methods.base import Method
from istbench.methods.streaming import StreamingSubnetTraining
from istbench.methods.subnet_training import SubnetTraining


class IndependentSubnetTraining(SubnetTraining):
    """Each node trains its own part of the hidden units; the parts change."""

    @classmethod
    def form(cls, options: Any) -> type[Method]:
        return StreamingSubnetTraining if options.streaming else cls
