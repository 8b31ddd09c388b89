"""Imported by the fork server, and by nothing else: workers are forks of it, with all they need already loaded.

torch imports its compiler at the first optimizer or DistributedDataParallel; every worker would pay for that.
"""

import safetensors.torch  # noqa: F401
import torch._dynamo
import torch.nn.parallel  # noqa: F401

import istbench.launch.local_worker
import istbench.methods.data_parallel
import istbench.methods.ist
import istbench.methods.local_sgd
import istbench.node.worker  # noqa: F401
from istbench.launch.orphans import die_with_parent

die_with_parent()
