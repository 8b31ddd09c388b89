"""The parts of a checkpoint, one a rank, all in rank 0's run directory.

The ranks of rank 0's host write and read their own. Others send theirs to rank 0, and get them from it: nothing of
a run is left on their hosts, and any of these can be lost.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from istbench.fabric import Fabric
from istbench.node import checkpoint
from istbench.node.checkpoint import Totals


class Parts:
    """This rank's way to the checkpoint in `directory`; every rank must call its methods alike."""

    def __init__(self, directory: Path, fabric: Fabric) -> None:
        self._directory, self._fabric = directory, fabric
        elsewhere = fabric.numbers(float(os.environ.get("GROUP_RANK", "0") != "0"))
        self._elsewhere = [rank for rank, value in enumerate(elsewhere) if value]

    def write(self, totals: Totals, state: dict[str, Any]) -> None:
        """Write every rank's `state`, and publish them as those of `totals`.

        Raises:
            UserError: where they cannot be written.
        """
        fabric, sent = self._fabric, torch.empty(0, dtype=torch.uint8)
        if fabric.rank in self._elsewhere:
            sent = checkpoint.packed(state)
        else:
            checkpoint.write_rank(self._directory, totals.step, fabric.rank, state)
        if self._elsewhere:
            sizes = [int(size) for size in fabric.numbers(sent.numel())]
            with fabric.accounting("assemble"):
                for rank, part in fabric.gather_to_zero(sent.to(fabric.device), sizes, "writing a checkpoint"):
                    if rank in self._elsewhere:
                        checkpoint.write_rank(self._directory, totals.step, rank, checkpoint.unpacked(part))
        fabric.barrier("writing a checkpoint")
        if fabric.rank == 0:
            checkpoint.publish(self._directory, totals)

    def read(self) -> tuple[Totals, dict[str, Any]] | None:
        """The totals at the published checkpoint and this rank's state there, None where there is none.

        Raises:
            UserError: where what is there is no checkpoint, naming the directory to delete.
        """
        fabric = self._fabric
        found = checkpoint.latest(self._directory) if fabric.rank == 0 else None
        word = fabric.words.follow_zero("" if found is None else msgspec.json.encode(found).decode())
        if not word:
            return None
        totals = msgspec.json.decode(word, type=Totals)
        state: dict[str, Any] = {}
        if fabric.rank not in self._elsewhere:
            state = checkpoint.read_rank(self._directory, totals.step, fabric.rank)
        for rank in self._elsewhere:
            part = self._sent(totals.step, rank)
            if rank == fabric.rank:
                state = checkpoint.unpacked(part)
        return totals, state

    def _sent(self, step: int, rank: int) -> Tensor:
        """The packed state of `rank` at `step`, there; elsewhere nothing to speak of."""
        fabric, part = self._fabric, torch.empty(0, dtype=torch.uint8)
        if fabric.rank == 0:
            part = checkpoint.packed(checkpoint.read_rank(self._directory, step, rank)).to(fabric.device)
        size = int(fabric.numbers(part.numel())[0])
        with fabric.accounting("assemble"):
            if fabric.rank == 0:
                fabric.exchange({rank: part}, {}, "reading a checkpoint")
            elif fabric.rank == rank:
                part = torch.empty(size, dtype=torch.uint8, device=fabric.device)
                fabric.exchange({}, {0: part}, "reading a checkpoint")
        return part
