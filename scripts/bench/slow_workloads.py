"""A plug-in for `checkpoint_damage.py` and `killed_runs.py`: workloads that wait `SLOW_S` seconds in every step.

A run is slow while a study waits for its moment, and quick when it resumes: the environment is no part of a cell.
"""

import os
import time

import torch

from istbench.workloads.amazon670k import Amazon670k
from istbench.workloads.base import Batch
from istbench.workloads.toy import Toy


class Slow(Toy):
    """The toy workload."""

    name = "slow"

    def train_batch(self, indices: torch.Tensor, generator: torch.Generator) -> Batch:
        time.sleep(float(os.environ.get("SLOW_S", "0")))
        return super().train_batch(indices, generator)


class SlowWide(Amazon670k):
    """Extreme classification, for methods of very wide outputs."""

    name = "slow_wide"

    def train_batch(self, indices: torch.Tensor, generator: torch.Generator) -> Batch:
        time.sleep(float(os.environ.get("SLOW_S", "0")))
        return super().train_batch(indices, generator)
