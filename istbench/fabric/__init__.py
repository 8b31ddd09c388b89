"""The only door to torch.distributed: collectives, point-to-point transfers, byte counts, named time-outs."""

from istbench.fabric.connect import connect
from istbench.fabric.errors import FabricError
from istbench.fabric.fabric import Fabric
from istbench.fabric.pending import Pending
from istbench.fabric.transport import Traffic

__all__ = ["Fabric", "FabricError", "Pending", "Traffic", "connect"]
