"""Imported once by the fork server, so that workers start with everything they need already loaded.

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
