"""Plug-ins that are hard to plan."""

from dataclasses import dataclass

from istbench.base.errors import UserError
from istbench.methods.local_sgd import LocalSGD
from istbench.workloads.toy import Toy, ToyOptions


class Silent(LocalSGD):
    """Says nothing of its memory, as methods of before do."""

    name = "silent"

    def footprint(self, model, workload, world_size, batch_size):
        return None


class Opaque(Toy):
    """Its loss needs values."""

    name = "opaque"

    def loss(self, model, batch):
        return super().loss(model, batch) * float(batch[0].sum())


@dataclass(frozen=True, kw_only=True)
class EvenOptions(ToyOptions):
    def __post_init__(self):
        if self.hidden % 2:
            raise UserError("hidden must be even")


class Even(Toy):
    """Has even widths only."""

    name = "even"
    Options = EvenOptions
